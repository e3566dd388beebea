"""The denoising loop: from noise to latents with a diffusers scheduler, step by step as in diffusers' pipelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import diffusers
import numpy as np
import torch
from torch import nn

from modules.data.buckets import Size
from modules.diffusion.flow_convention import FlowConvention, LogitNormalGrid
from modules.diffusion.process import DDPMProcess, NoiseProcess
from modules.families.projected_guidance import ProjectedGuidance
from modules.families.protocol import ModelFamily
from modules.families.spec import GuidedNorm
from modules.sampling.registry import SAMPLERS, FlowScheduler, samplers_for
from modules.system.devices import Device, move, widest_float
from modules.system.errors import DarkroomError


class FlowSteps:
    """A diffusers scheduler for flow models, at the shift of one image size and number of steps.

    It has the interface of the DDPM schedulers, which the denoising loop uses. Its `timesteps` are 1000 times the
    scheduler's sigmas. Those of diffusers' multistep schedulers are rounded to whole numbers, so that the model would
    read another noise level than its input has.
    """

    init_noise_sigma = 1.0

    def __init__(
        self, record: FlowScheduler, config: Mapping[str, Any], convention: FlowConvention, size: Size
    ) -> None:
        """`config` is the model's own scheduler config, `size` the image's size."""
        self._record, self._config, self._convention, self._size = record, config, convention, size
        self.scheduler: Any = self._make_scheduler(1)
        self.timesteps = torch.empty(0)
        self._num_levels = int(self.scheduler.config.num_train_timesteps)
        # diffusers' own grid ends at its smallest sigma, which is shifted already if the shift is constant.
        self._smallest = 1.0 / self._num_levels if convention.shift.depends_on_size else None
        self._has_grid = record.has_grid
        self._terminal = None if record.has_terminal else config.get("shift_terminal")
        self._draws = "generator" in signature(self.scheduler.step).parameters

    def set_timesteps(self, num_steps: int, device: torch.device | str | None = None) -> None:
        """Set the number of steps, and the device of the timesteps."""
        self.scheduler = self._make_scheduler(num_steps)
        if num_steps == 1:  # the stretch to a terminal sigma would divide by 1 - the first sigma, which is 0
            self.scheduler.register_to_config(shift_terminal=None)
        levels = self._levels(num_steps) if self._has_grid else None
        options = {} if levels is None else {"sigmas": levels}
        self.scheduler.set_timesteps(num_steps, device=device, **options)
        # Else a scheduler looks the first timestep up, and begins at the second of two that are equal when rounded.
        self.scheduler.set_begin_index(0)
        if self._terminal and num_steps > 1:
            self._stretch(float(self._terminal))
        sigmas = self.scheduler.sigmas[: len(self.scheduler.timesteps)]
        self.timesteps = (sigmas * self._num_levels).to(device)

    def scale_model_input(self, latents_BCHW: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        """Return the latents: a flow model gets them as they are."""
        return latents_BCHW

    def step(
        self,
        output_BCHW: torch.Tensor,
        timestep: torch.Tensor,
        latents_BCHW: torch.Tensor,
        generator: torch.Generator | list[torch.Generator] | None = None,
    ) -> Any:
        """Return the scheduler's result of the next step; `prev_sample` are the latents after it.

        A scheduler that adds noise draws it from `generator`.
        """
        options = {"generator": generator} if self._draws else {}
        return self.scheduler.step(output_BCHW, timestep, latents_BCHW, **options)

    def _levels(self, num_steps: int) -> np.ndarray[Any, Any] | None:
        """Return the noise levels before the shift; None for the scheduler's own."""
        grid = self._convention.sample_grid
        if isinstance(grid, LogitNormalGrid):
            return np.array(grid.levels(num_steps, self._shift(num_steps)))
        last = 1.0 / num_steps if grid == "even" else self._smallest
        return None if last is None else np.linspace(1.0, last, num_steps)

    def _shift(self, num_steps: int) -> float:
        return self._convention.sample_shift_at(self._size.width_px, self._size.height_px, num_steps)

    def _make_scheduler(self, num_steps: int) -> Any:
        """Return the scheduler, at the shift of that many steps."""
        options = {**self._record.options, self._record.shift_option: self._shift(num_steps)}
        return getattr(diffusers, self._record.scheduler).from_config(dict(self._config), **options)

    def _stretch(self, terminal: float) -> None:
        """Stretch the sigmas so that the last one above 0 is the terminal one, as `stretch_shift_to_terminal` does."""
        sigmas = self.scheduler.sigmas
        rest = 1.0 - sigmas[:-1]
        self.scheduler.sigmas = torch.cat([1.0 - rest * ((1.0 - terminal) / rest[-1]), sigmas[-1:]])


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


def _betas(process: NoiseProcess, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the betas of a process as options of diffusers' schedulers, for a config that does not name any."""
    if "beta_schedule" in config or not isinstance(process, DDPMProcess):
        return {}
    before_T = torch.cat([torch.ones(1), process.alphas_cumprod_T.cpu()[:-1]])
    return {"trained_betas": (1.0 - process.alphas_cumprod_T.cpu() / before_T).tolist()}


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
        return make_scheduler(sampler, {**_betas(process, family.scheduler_config()), **family.scheduler_config()})
    return FlowSteps(spec.flow, family.scheduler_config(), flow, size)


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
    options = _supported_options(scheduler, generator=generator)
    for timestep in scheduler.timesteps[:most_steps]:
        on_step()
        output_BCHW = predict(scheduler.scale_model_input(latents_BCHW, timestep), timestep)
        latents_BCHW = scheduler.step(output_BCHW.float(), timestep, latents_BCHW, **options).prev_sample
    return latents_BCHW


def guide(predict: Predict, guidance: float, *, norm_over: GuidedNorm = 0) -> Predict:
    """Return a prediction with classifier-free guidance (Ho and Salimans 2022, eq. 6).

    `predict` receives every latent twice in one batch: first for the negative prompt, then for the prompt. With
    `norm_over` each square or row keeps the norm of the prediction for the prompt (`FamilySpec.guided_norm`).
    """

    def run(noisy_BCHW: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        negative_BCHW, positive_BCHW = predict(torch.cat([noisy_BCHW] * 2), timestep).chunk(2)
        guided_BCHW = negative_BCHW + guidance * (positive_BCHW - negative_BCHW)
        return _with_norm_of(positive_BCHW, guided_BCHW, norm_over) if norm_over else guided_BCHW

    return run


def guide_projected(predict: Predict, guidance: float, how: ProjectedGuidance) -> Predict:
    """Return a prediction with a guidance that is projected after the first steps of one denoising loop, in order.

    `predict` as for `guide`. As in diffusers' `AdaptiveProjectedMixGuidance`, without its part parallel to the
    prediction (`eta` 0).
    """
    num_steps, average_BCHW = 0, torch.zeros(())

    def run(noisy_BCHW: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        nonlocal num_steps, average_BCHW
        negative_BCHW, positive_BCHW = predict(torch.cat([noisy_BCHW] * 2), timestep).chunk(2)
        change_BCHW = positive_BCHW - negative_BCHW
        average_BCHW = change_BCHW + how.momentum * average_BCHW.to(change_BCHW.device)
        num_steps += 1
        if num_steps <= how.plain_steps:
            return negative_BCHW + guidance * change_BCHW
        return negative_BCHW + how.scale * _project_changes(average_BCHW, positive_BCHW, how.most_norm)

    return run


def _project_changes(change_BCHW: torch.Tensor, onto_BCHW: torch.Tensor, most_norm: float) -> torch.Tensor:
    """Return changes of at most a norm, without their parts parallel to other values (arXiv 2410.02416, eq. 5)."""

    def norms(of_BCHW: torch.Tensor) -> torch.Tensor:
        norms_B111: torch.Tensor = torch.linalg.vector_norm(of_BCHW, dim=_of_sample(of_BCHW), keepdim=True)
        return norms_B111

    dtype = widest_float(onto_BCHW.device)
    bounded_BCHW = (change_BCHW * (most_norm / norms(change_BCHW)).clamp(max=1.0)).to(dtype)
    direction_BCHW = onto_BCHW.to(dtype) / norms(onto_BCHW.to(dtype)).clamp(min=1e-12)
    parallel_BCHW = (bounded_BCHW * direction_BCHW).sum(dim=_of_sample(change_BCHW), keepdim=True) * direction_BCHW
    return (bounded_BCHW - parallel_BCHW).type_as(change_BCHW)


def _of_sample(latents_BCHW: torch.Tensor) -> tuple[int, ...]:
    """Return the axes of a sample's values: all but the first."""
    return tuple(range(1, latents_BCHW.dim()))


def _with_norm_of(like_BCHW: torch.Tensor, values_BCHW: torch.Tensor, over: GuidedNorm) -> torch.Tensor:
    """Return values with the norms of others: over the channels of each square of a side (`QwenImagePipeline`), or over
    each row of each channel (`Lumina2Pipeline`).
    """

    def norms(of_BCHW: torch.Tensor) -> torch.Tensor:
        if over == "rows":
            rows: torch.Tensor = of_BCHW.norm(dim=-1, keepdim=True)
            return rows
        side = int(over)
        if of_BCHW.dim() == 5:  # the squares of each frame
            return torch.stack([norms(frame) for frame in of_BCHW.unbind(2)], dim=2)
        squares: torch.Tensor = nn.functional.pixel_unshuffle(of_BCHW, side).norm(dim=1, keepdim=True)
        return squares.repeat_interleave(side, dim=2).repeat_interleave(side, dim=3)

    return values_BCHW * (norms(like_BCHW) / norms(values_BCHW))


def _supported_options(scheduler: Any, **options: Any) -> dict[str, Any]:
    """Return the options that this scheduler's step supports: only ancestral ones add noise."""
    names = signature(scheduler.step).parameters
    return {name: value for name, value in options.items() if name in names}
