"""Rollouts: sampling images with a graph that a method can train on.

The denoising loop is DDIM with classifier-free guidance. Its first steps run without gradient (under `no_grad`:
detaching would keep their graphs until the latents are freed). The last K steps and the decoding of the latents have a
gradient. Where the family's denoiser is checkpointed as a whole (`PartMemory("whole")`), only the input and output
latents of each of the K steps are kept between the passes, no inner activations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from modules.data.buckets import Size
from modules.data.conditioning import Conditioning
from modules.data.size_conditioning import SizeConditioning
from modules.families.protocol import ModelFamily
from modules.families.spec import FamilySpec
from modules.memory.checkpointing import create_checkpointed_forward
from modules.sampling.ddim_step import DdimStep, ddim_steps
from modules.sampling.denoising_loop import Predict, guided
from modules.system.devices import Device, move

Store = Literal["none", "final", "trajectory"]


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """The denoising loop: the number of steps, the guidance scale (1 or less: no guidance), and DDIM's eta."""

    num_steps: int
    guidance: float = 1.0
    eta: float = 0.0


@dataclass(frozen=True, eq=False)
class Rollout:
    """The result of a denoising loop; AlignProp trains on the images' graph, other methods on the stored states.

    `images_B3PP` are in [0, 1], float32, with their graph where `gradient_steps` is above 0. `latents_BSCHW` are
    detached and float32, since rounding would change the policies' ratio by more than its clip range: none (S = 0),
    only the last (S = 1), or all, starting with the noise (S = steps + 1). `log_probs_BN` are those of each step under
    the policy that sampled, 0 for a deterministic step.
    """

    seeds: tuple[int, ...]
    timesteps: tuple[int, ...]
    gradient_steps: int
    images_B3PP: torch.Tensor
    latents_BSCHW: torch.Tensor
    log_probs_BN: torch.Tensor


def roll_out(
    family: ModelFamily,
    conditioning: Conditioning,
    unconditional: Conditioning | None,
    *,
    seeds: Sequence[int],
    size: Size,
    settings: RolloutSettings,
    gradient_steps: int,
    device: Device,
    temp_device: Device,
    on_step: Callable[[], None],
    store: Store = "none",
) -> Rollout:
    """Sample one image per seed and return the rollout.

    `conditioning` is that of B prompts on the device; `unconditional`, needed only for guidance, that of the empty
    prompt, once or B times. Both receive the size conditioning of uncropped images of `size`. Each image's noise comes
    from its own seed, so an image does not depend on the others in the batch. `gradient_steps` is K, 0 for a rollout
    without a graph. `on_step` is called before each denoising step and before the decoding, and may raise to end the
    rollout. Raises DarkroomError for settings that the model does not support, and ValueError where K exceeds the
    number of steps.
    """
    steps = ddim_steps(family.process, family.scheduler_config(), num_steps=settings.num_steps, eta=settings.eta)
    if not 0 <= gradient_steps <= len(steps):
        raise ValueError(
            f"gradient_steps must be between 0 and the {len(steps)} denoising steps, not {gradient_steps}."
        )
    predict = _policy(family, conditioning, unconditional, size, settings.guidance)
    generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]
    latents_BCHW = _noise(generators, family.spec, size, device)
    states, log_probs = [latents_BCHW], []
    first_with_gradient = len(steps) - gradient_steps
    for index, step in enumerate(steps):
        on_step()
        fresh_BCHW = _noise(generators, family.spec, size, device) if step.sigma > 0 else None
        if index == first_with_gradient:
            _forget_casts()
        with nullcontext() if index >= first_with_gradient else torch.no_grad():
            latents_BCHW, log_prob_B = _stepped(predict, step, latents_BCHW, fresh_BCHW)
        log_probs.append(log_prob_B)
        if store == "trajectory":
            states.append(latents_BCHW.detach())
    on_step()
    with nullcontext() if gradient_steps else torch.no_grad():
        images_B3PP = _decoded(family, latents_BCHW, train_device=device, temp_device=temp_device)
    if not gradient_steps:
        _forget_casts()
    kept = {"none": [], "final": [latents_BCHW.detach()], "trajectory": states}[store]
    return Rollout(
        seeds=tuple(seeds),
        timesteps=tuple(step.timestep for step in steps),
        gradient_steps=gradient_steps,
        images_B3PP=images_B3PP,
        latents_BSCHW=torch.stack(kept, dim=1) if kept else latents_BCHW.detach()[:, None][:, :0],
        log_probs_BN=torch.stack(log_probs, dim=1),
    )


def _forget_casts() -> None:
    """Clear autocast's cache of cast weights, after steps without gradients and before a forward pass with them.

    Before torch 2.11 a cast made under `no_grad` stayed in the cache without its graph, and its weight received no
    gradient (pytorch/pytorch#165068). Graphs recorded earlier keep their own casts.
    """
    torch.clear_autocast_cache()


def _policy(
    family: ModelFamily,
    conditioning: Conditioning,
    unconditional: Conditioning | None,
    size: Size,
    guidance: float,
) -> Predict:
    """Return the guided prediction: one call of the family per step, the batch doubled for guidance."""
    is_guided = guidance > 1
    if is_guided:
        if unconditional is None:
            raise ValueError("Guidance needs the conditioning of the empty prompt.")
        repeated = unconditional.select([0] * len(conditioning)) if len(unconditional) == 1 else unconditional
        conditioning = family.join([repeated, conditioning], unconditional.select([0]))
    whole = family.with_size_conditioning(conditioning, [SizeConditioning.whole(size)] * len(conditioning))

    def predict(noisy_BCHW: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        output_BCHW = family.predict(noisy_BCHW, timestep.expand(noisy_BCHW.shape[0]), whole)
        return output_BCHW.float()

    return guided(predict, guidance) if is_guided else predict


def _stepped(
    predict: Predict, step: DdimStep, latents_BCHW: torch.Tensor, fresh_BCHW: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the next latents with their graph, if any, and their log-probability without a graph."""
    timestep = torch.full((), step.timestep, dtype=torch.int64, device=latents_BCHW.device)
    mean_BCHW = step.mean(predict(latents_BCHW, timestep), latents_BCHW)
    next_BCHW = step.next_latents(mean_BCHW, fresh_BCHW)
    return next_BCHW, step.log_prob(next_BCHW.detach(), mean_BCHW.detach())


def _noise(generators: Sequence[torch.Generator], spec: FamilySpec, size: Size, device: Device) -> torch.Tensor:
    """Return standard normal noise, one row per generator, generated on the CPU as everywhere."""
    shape = (spec.latent_channels, size.height_px // spec.latent_factor, size.width_px // spec.latent_factor)
    return move(torch.stack([torch.randn(shape, generator=generator) for generator in generators]), device)


def _decoded(
    family: ModelFamily, latents_BCHW: torch.Tensor, *, train_device: Device, temp_device: Device
) -> torch.Tensor:
    """Return the images in [0, 1], decoded one by one and checkpointed.

    Decoded outside autocast, as samples are: the VAE uses its own dtype.
    """
    decode = create_checkpointed_forward(
        _Decoder(family), train_device=train_device, temp_device=temp_device, mode="whole"
    )
    with torch.autocast(latents_BCHW.device.type, enabled=False):
        images_B3PP = torch.cat([decode(latents_BCHW[i : i + 1]) for i in range(len(latents_BCHW))])
    return (images_B3PP / 2 + 0.5).clamp(0, 1)


class _Decoder(nn.Module):
    """A family's `decode` as a module, since only modules can be checkpointed; it does not own the family's parts."""

    def __init__(self, family: ModelFamily) -> None:
        super().__init__()
        self.family = family

    def forward(self, latents_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the images (B, 3, P, P) in [-1, 1]."""
        return self.family.decode(latents_BCHW)
