"""The timesteps and the noise of a training step, from the run's noise settings."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from modules.config.sections.noise import Noise, timestep_sampling_of
from modules.data.batch import Batch
from modules.diffusion.noise import Rows
from modules.diffusion.process import NoiseProcess
from modules.diffusion.timesteps.drawing import BatchPosition, draw_timesteps
from modules.diffusion.timesteps.sampling import TimestepSampling
from modules.diffusion.training_noise import NoiseSeed, NoiseSettings, TrainingNoise, training_noise
from modules.families.spec import FamilySpec
from trainer.methods.protocol import StepContext


@dataclass(frozen=True, slots=True)
class Noising:
    """The noising of clean latents in training: the timesteps' distribution, and the kinds of noise."""

    timesteps: TimestepSampling = field(default_factory=TimestepSampling)
    noise: NoiseSettings = field(default_factory=NoiseSettings)

    def draw(
        self, clean_BCHW: torch.Tensor, position: BatchPosition, context: StepContext
    ) -> tuple[torch.Tensor, TrainingNoise]:
        """Return the timesteps, of shape (B,), and the noise of a micro-batch with clean latents."""
        process = context.family.process
        timesteps_B = draw_timesteps(
            self.timesteps,
            position,
            run_seed=context.run_seed,
            num_timesteps=process.num_timesteps,
            device=context.device,
            is_continuous=process.spec.is_continuous,
            size_shift=size_shift(process, clean_BCHW, context.family.spec),
        )
        seed = NoiseSeed(context.run_seed, position.step, position.micro_batch, context.device, position.rows)
        return timesteps_B, training_noise(self.noise, clean_BCHW, timesteps_B, process, seed)


def position_of(batch: Batch) -> BatchPosition:
    """Return a batch's position within its accumulation group."""
    return BatchPosition(
        batch.step,
        batch.micro_batch,
        batch.num_samples,
        group_start=batch.group_start,
        group_samples=batch.group_samples,
        rows=Rows(batch.first_row, batch.micro_batch_samples),
    )


def size_shift(process: NoiseProcess, clean_BCHW: torch.Tensor, spec: FamilySpec) -> float:
    """Return the factor of the dynamic timestep shift for images with latents of this size."""
    height_px, width_px = map(spec.latents.px, clean_BCHW.shape[-2:])
    return process.spec.size_shift(width_px=width_px, height_px=height_px, own_px=spec.default_resolution_px)


def noising_of(noise: Noise) -> Noising:
    """Return the noising with a run's settings."""
    settings = NoiseSettings(
        offset_weight=noise.offset_weight,
        generalized_offset=noise.generalized_offset,
        offset_random_strength=noise.offset_random_strength,
        offset_adaptive_scale=noise.offset_adaptive_scale,
        perturbation_weight=noise.perturbation_weight,
        input_perturbation=noise.input_perturbation,
        input_perturbation_random_strength=noise.input_perturbation_random_strength,
        pyramid_iterations=noise.pyramid_iterations,
        pyramid_discount=noise.pyramid_discount,
    )
    return Noising(timestep_sampling_of(noise), settings)
