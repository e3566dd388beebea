"""The denoising loop: from noise to latents with a diffusers scheduler, step by step as in diffusers' pipelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import diffusers
import torch

from modules.data.buckets import Size
from modules.families.protocol import ModelFamily
from modules.sampling.flow_scheduler import FlowSteps
from modules.sampling.registry import SAMPLERS, samplers_for
from modules.system.devices import Device, move
from modules.system.errors import DarkroomError

Predict = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def make_scheduler(sampler: str, config: Mapping[str, Any]) -> Any:
    """Return the diffusers scheduler of a sampler for a DDPM model, set up from the model's own scheduler config.

    A model with zero terminal SNR is sampled with trailing timesteps, so that the loop starts at the last one, pure
    noise (Lin et al. 2023, section 3.3). Raises KeyError for an unknown sampler.
    """
    spec = SAMPLERS[sampler]
    options = dict(spec.options)
    if config.get("rescale_betas_zero_snr"):
        options["timestep_spacing"] = "trailing"
    return getattr(diffusers, spec.scheduler).from_config(dict(config), **options)


def scheduler_for(family: ModelFamily, sampler: str, size: Size) -> Any:
    """Return the scheduler with which a model samples images of a size.

    Raises KeyError for an unknown sampler, and DarkroomError for one that does not support the model.
    """
    process, spec = family.process, SAMPLERS[sampler]
    if not spec.supports([process.prediction_type]):
        others = ", ".join(other.label for other in samplers_for([process.prediction_type]).values())
        raise DarkroomError(
            f"The sampler {spec.label} does not support {process.spec.label} models.",
            advice=f"Choose one of: {others}.",
        )
    flow = process.spec.flow
    if flow is None or spec.flow is None:
        return make_scheduler(sampler, family.scheduler_config())
    return FlowSteps(spec.flow, family.scheduler_config(), flow, flow.shift_at(size.width_px, size.height_px))


def initial_noise(shape: tuple[int, ...], *, seed: int, device: Device) -> tuple[torch.Tensor, torch.Generator]:
    """Return the initial noise of an image, float32, and the generator for the noise of later steps.

    Generated on the CPU, as in diffusers' pipelines with a CPU generator: the same seed gives the same image there and
    here.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    return move(torch.randn(shape, generator=generator), device), generator


def run_denoising_loop(
    predict: Predict,
    scheduler: Any,
    noise_BCHW: torch.Tensor,
    *,
    num_steps: int,
    generator: torch.Generator | list[torch.Generator],
    on_step: Callable[[], None],
    most_steps: int | None = None,
) -> torch.Tensor:
    """Return the denoised latents (B, C, H, W).

    `predict(noisy, timestep)` returns the guided model output at a timestep of shape (); `on_step` is called before
    each step and may raise to end the loop. Samplers that add noise draw it from `generator`, or from a list with one
    for each image. The loop ends early after `most_steps`; its latents are still noisy then.
    """
    scheduler.set_timesteps(num_steps, device=noise_BCHW.device)
    latents_BCHW: torch.Tensor = noise_BCHW * scheduler.init_noise_sigma
    options = _accepted(scheduler, generator=generator)
    for timestep in scheduler.timesteps[:most_steps]:
        on_step()
        output_BCHW = predict(scheduler.scale_model_input(latents_BCHW, timestep), timestep)
        latents_BCHW = scheduler.step(output_BCHW.float(), timestep, latents_BCHW, **options).prev_sample
    return latents_BCHW


def guided(predict: Predict, guidance: float) -> Predict:
    """Return a prediction with classifier-free guidance (Ho and Salimans 2022, eq. 6).

    `predict` receives every latent twice in one batch: first for the negative prompt, then for the prompt.
    """

    def run(noisy_BCHW: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        negative_BCHW, positive_BCHW = predict(torch.cat([noisy_BCHW] * 2), timestep).chunk(2)
        return negative_BCHW + guidance * (positive_BCHW - negative_BCHW)

    return run


def _accepted(scheduler: Any, **options: Any) -> dict[str, Any]:
    """Return the options that this scheduler's step supports: only ancestral ones add noise."""
    names = scheduler.step.__code__.co_varnames[: scheduler.step.__code__.co_argcount]
    return {name: value for name, value in options.items() if name in names}
