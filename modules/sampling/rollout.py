"""Rollouts: sampling images with a graph that a method can train on, or with stored states to train on later.

The denoising loop of `roll_out` is DDIM with the family's guidance, and Euler's for flow models. Its first steps run
without gradient (under `no_grad`: detaching would keep their graphs until the latents are freed). The last K steps and
the decoding of the latents have a gradient. Where the family's denoiser is checkpointed as a whole
(`PartMemory("whole")`), only the input and output latents of each of the K steps are kept between the passes, no inner
activations. `sample_with` samples with any sampler of the registry, for methods that need no log-probabilities.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import nn

from modules.data.buckets import Size
from modules.data.conditioning import Conditioning
from modules.families.protocol import ModelFamily
from modules.families.spec import FamilySpec
from modules.memory.checkpointing import create_checkpointed_forward
from modules.sampling.ddim_step import DdimStep, ddim_steps
from modules.sampling.denoising_loop import run_denoising_loop, scheduler_for
from modules.sampling.flow_step import FlowNoise, FlowStep, flow_steps
from modules.sampling.gaussian_step import GaussianStep, timestep_tensor
from modules.sampling.prediction import guided_prediction
from modules.system.devices import Device, move

_Step = TypeVar("_Step", DdimStep, FlowStep)


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """The denoising loop: the number of steps, the guidance scale (1 or less: no guidance), and DDIM's eta.

    The steps of a flow model have `flow_eta` in its place, and the kind of their noise (`FlowStep`).
    `stochastic_steps` are the numbers of the steps to which eta applies, all others are deterministic (MixGRPO, Li et
    al. 2025); None applies it to all.
    """

    num_steps: int
    guidance: float = 1.0
    eta: float = 0.0
    flow_eta: float = 0.0
    flow_noise: FlowNoise = "cps"
    stochastic_steps: frozenset[int] | None = None


@dataclass(frozen=True, eq=False)
class Rollout:
    """The result of a denoising loop; AlignProp trains on the images' graph, other methods on the stored states.

    `images_B3PP` are in [0, 1], float32, with their graph if some steps had a gradient; there are none if the loop
    did not decode. `states_BCHW` are the latents that were to be stored, on the offload device: state 0 is the noise,
    state i the latents after i steps, so that step i leads from state i to state i + 1. They are detached and float32,
    since rounding would change the policies' ratio by more than its clip range. `means_BCHW` are the means of the steps
    that were to be stored, by the number of the step, in the same way. `log_probs_BN` are the log-probabilities of each
    step under the policy that sampled, on the offload device; 0 for a deterministic step. They are empty (N = 0) for a
    sampler without densities.
    """

    seeds: tuple[int, ...]
    images_B3PP: torch.Tensor
    states_BCHW: Mapping[int, torch.Tensor]
    log_probs_BN: torch.Tensor
    means_BCHW: Mapping[int, torch.Tensor] = field(default_factory=dict)


def ddim_steps_of(family: ModelFamily, settings: RolloutSettings) -> tuple[DdimStep, ...]:
    """Return the steps of a rollout of a DDPM model, the noisiest first, as they are sampled and as they are trained.

    Raises DarkroomError for a flow model and for settings that the model does not support.
    """
    steps = ddim_steps(family.process, family.scheduler_config(), num_steps=settings.num_steps, eta=settings.eta)
    return _with_chosen_noise(steps, settings)


def steps_of(family: ModelFamily, settings: RolloutSettings, size: Size) -> Sequence[DdimStep | FlowStep]:
    """Return the steps of a rollout of images of a size, the noisiest first, as they are sampled and trained.

    Raises DarkroomError for settings that the model does not support.
    """
    if family.process.spec.flow is None:
        return ddim_steps_of(family, settings)
    steps = flow_steps(family, size, num_steps=settings.num_steps, eta=settings.flow_eta, noise=settings.flow_noise)
    return _with_chosen_noise(steps, settings)


def _with_chosen_noise(steps: tuple[_Step, ...], settings: RolloutSettings) -> tuple[_Step, ...]:
    """Return the steps, of which only the `stochastic_steps` of the settings add noise."""
    if settings.stochastic_steps is None:
        return steps
    return tuple(s if i in settings.stochastic_steps else replace(s, eta=0.0) for i, s in enumerate(steps))


def trainable_steps(steps: Sequence[GaussianStep]) -> tuple[int, ...]:
    """Return the numbers of the steps on whose densities a policy can be trained.

    Never the last one: its sigma is 0 or nearly 0, so that its density would be infinite or outweigh all others.
    """
    return tuple(index for index, step in enumerate(steps[:-1]) if step.sigma > 0)


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
    noise_seeds: Sequence[int] | None = None,
    stored_states: Collection[int] = (),
    stored_means: Collection[int] = (),
    decodes: bool = True,
) -> Rollout:
    """Sample one image per seed and return the rollout.

    `conditioning` belongs to B prompts on the device; `unconditional`, needed only for guidance, to the empty prompt,
    once or B times. Each image's noise comes from its own seed, so an image does not depend on the others in the batch;
    with `noise_seeds` its first noise comes from these seeds, which several images may share. `gradient_steps` is K, 0
    for a rollout without a graph; `stored_states` are the numbers of the states to store, `stored_means` the numbers
    of the steps whose means are stored. Without `decodes` there are no images, only latents. `on_step` is called
    before each denoising step and before the decoding, and may raise to end the rollout. Raises DarkroomError for
    settings that the model does not support, and ValueError where K exceeds the number of steps.
    """
    steps = steps_of(family, settings, size)
    if not 0 <= gradient_steps <= len(steps):
        raise ValueError(
            f"gradient_steps must be between 0 and the {len(steps)} denoising steps, not {gradient_steps}."
        )
    predict = guided_prediction(family, conditioning, unconditional, size=size, guidance=settings.guidance)
    generators = generators_of(seeds)
    first = generators if noise_seeds is None else generators_of(noise_seeds)
    latents_BCHW = noise_of(first, family.spec, size, device)
    states, means, log_probs = _States(stored_states, temp_device), _States(stored_means, temp_device), []
    states.add(0, latents_BCHW)
    first_with_gradient = len(steps) - gradient_steps
    for index, step in enumerate(steps):
        on_step()
        fresh_BCHW = noise_of(generators, family.spec, size, device) if step.sigma > 0 else None
        if index == first_with_gradient:
            forget_casts()
        with nullcontext() if index >= first_with_gradient else torch.no_grad():
            mean_BCHW = step.mean(predict(latents_BCHW, timestep_tensor(step, latents_BCHW.device)), latents_BCHW)
            latents_BCHW = step.next_latents(mean_BCHW, fresh_BCHW)
        log_prob_B = step.log_prob(latents_BCHW.detach(), mean_BCHW.detach())
        means.add(index, mean_BCHW)
        log_probs.append(log_prob_B)
        states.add(index + 1, latents_BCHW)
    on_step()
    images_B3PP = latents_BCHW.new_empty((0, 3, 0, 0))
    if decodes:
        with nullcontext() if gradient_steps else torch.no_grad():
            images_B3PP = decode_images(
                family, latents_BCHW, conditioning, train_device=device, temp_device=temp_device
            )
    if not gradient_steps:
        forget_casts()
    return Rollout(
        seeds=tuple(seeds),
        images_B3PP=images_B3PP,
        states_BCHW=states.kept,
        log_probs_BN=move(torch.stack(log_probs, dim=1), temp_device),
        means_BCHW=means.kept,
    )


def sample_with(
    family: ModelFamily,
    conditioning: Conditioning,
    unconditional: Conditioning | None,
    *,
    sampler: str,
    num_steps: int,
    guidance: float,
    seeds: Sequence[int],
    size: Size,
    device: Device,
    temp_device: Device,
    on_step: Callable[[], None],
    noise_seeds: Sequence[int] | None = None,
    stored_states: Collection[int] = (),
) -> Rollout:
    """Sample one image per seed with a sampler of the registry, without a graph.

    Of the states only the noise, before it is scaled for the sampler, and the last one can be stored; the latter always
    is. Other arguments as of `roll_out`. Raises KeyError for an unknown sampler, and DarkroomError for one that does
    not support the model.
    """
    scheduler = scheduler_for(family, sampler, size)
    predict = guided_prediction(family, conditioning, unconditional, size=size, guidance=guidance)
    generators = generators_of(seeds)
    first = generators if noise_seeds is None else generators_of(noise_seeds)
    noise_BCHW = noise_of(first, family.spec, size, device)
    states = _States({num_steps, *stored_states}, temp_device)
    states.add(0, noise_BCHW)
    with torch.no_grad():
        latents_BCHW = run_denoising_loop(
            predict,
            scheduler,
            noise_BCHW,
            num_steps=num_steps,
            generator=generators,
            on_step=on_step,
        )
        on_step()
        images_B3PP = decode_images(family, latents_BCHW, conditioning, train_device=device, temp_device=temp_device)
    forget_casts()
    states.add(num_steps, latents_BCHW)
    return Rollout(
        seeds=tuple(seeds),
        images_B3PP=images_B3PP,
        states_BCHW=states.kept,
        log_probs_BN=move(torch.empty(len(seeds), 0), temp_device),
    )


class _States:
    """The states to store, detached, float32, on the offload device."""

    def __init__(self, wanted: Collection[int], temp_device: Device) -> None:
        self.kept: dict[int, torch.Tensor] = {}
        self._wanted, self._temp_device = frozenset(wanted), temp_device

    def add(self, number: int, latents_BCHW: torch.Tensor) -> None:
        """Store a state if it is wanted."""
        if number in self._wanted:
            self.kept[number] = move(latents_BCHW.detach().float(), self._temp_device)


def forget_casts() -> None:
    """Clear autocast's cache of cast weights, after steps without gradients and before a forward pass with them.

    Before torch 2.11 a cast made under `no_grad` stayed in the cache without its graph, and its weight received no
    gradient (pytorch/pytorch#165068). Graphs recorded earlier keep their own casts.
    """
    torch.clear_autocast_cache()


def generators_of(seeds: Sequence[int]) -> list[torch.Generator]:
    """Return a generator for each image, on the CPU."""
    return [torch.Generator("cpu").manual_seed(seed) for seed in seeds]


def noise_of(generators: Sequence[torch.Generator], spec: FamilySpec, size: Size, device: Device) -> torch.Tensor:
    """Return standard normal noise, one row per generator, generated on the CPU as everywhere."""
    shape = spec.latents.shape(size.width_px, size.height_px)
    return move(torch.stack([torch.randn(shape, generator=generator) for generator in generators]), device)


def decode_images(
    family: ModelFamily,
    latents_BCHW: torch.Tensor,
    prompts: Conditioning,
    *,
    train_device: Device,
    temp_device: Device,
) -> torch.Tensor:
    """Return the images of latents and their prompts in [0, 1], decoded one by one and checkpointed.

    Decoded outside autocast, as samples are: the VAE uses its own dtype.
    """
    decode = create_checkpointed_forward(
        _Decoder(family), train_device=train_device, temp_device=temp_device, mode="whole"
    )
    with torch.autocast(latents_BCHW.device.type, enabled=False):
        images = [decode(latents_BCHW[i : i + 1], prompts.select([i])) for i in range(len(latents_BCHW))]
        images_B3PP = torch.cat(images)
    return (images_B3PP / 2 + 0.5).clamp(0, 1)


class _Decoder(nn.Module):
    """A family's `decode` as a module, since only modules can be checkpointed; it does not own the family's parts."""

    def __init__(self, family: ModelFamily) -> None:
        super().__init__()
        self.family = family

    def forward(self, latents_BCHW: torch.Tensor, prompts: Conditioning) -> torch.Tensor:
        """Return the images (B, 3, P, P) in [-1, 1]."""
        return self.family.decode(latents_BCHW, prompts=prompts)


def pairwise_distance(latents_KCHW: torch.Tensor) -> float:
    """Return the mean distance of two of a prompt's K latents, relative to their mean norm; NaN for fewer than two.

    About sqrt(2) for latents that have nothing in common, 0 for equal ones. Reward hacking shows as a falling value:
    the model samples the same image again and again.
    """
    flat_KD = latents_KCHW.detach().float().flatten(1)
    distances = [torch.linalg.vector_norm(a - b) for a, b in itertools.combinations(flat_KD, 2)]
    norm = torch.linalg.vector_norm(flat_KD, dim=1).mean()
    if not distances or norm.item() == 0.0:
        return math.nan
    return float(torch.stack(distances).mean() / norm)


def mean_diversity(prompts: Sequence[torch.Tensor]) -> float:
    """Return the mean of `pairwise_distance` over prompts, each with its latents (K, C, H, W); NaN if none has one."""
    distances = [d for d in map(pairwise_distance, prompts) if not math.isnan(d)]
    return math.fsum(distances) / len(distances) if distances else math.nan
