"""Denoising, the standard method: noise is added to the latents, the model predicts it, the error is the loss."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from modules.config.sections.loss import Loss
from modules.config.sections.noise import Noise
from modules.config.sections.training import Training
from modules.data.batch import Batch
from modules.objectives.denoise import Prior, sample_losses, timestep_weights, weighted_errors
from trainer.methods.noising import Noising, noising_of, position_of
from trainer.methods.protocol import StepContext, StepLoss, TrainingMethod


@dataclass(frozen=True, slots=True)
class Denoise:
    """The denoising method: its loss weighting by name, the weighting's gamma, and its timesteps and noise."""

    weighting: str = "none"
    gamma: float = 5.0
    noising: Noising = field(default_factory=Noising)

    def prepare(self, context: StepContext) -> None:
        """Nothing to prepare."""

    def batches(self, loader: Iterable[Batch], context: StepContext) -> Iterator[Batch]:
        """Yield the loader's batches unchanged."""
        yield from loader

    def loss(self, batch: Batch, context: StepContext) -> StepLoss:
        """Return the weighted mean of the samples' denoising losses, each at its own random timestep."""
        family, process = context.family, context.family.process
        timesteps_B, noise = self.noising.draw(batch.latents_BCHW, position_of(batch), context)
        noisy_BCHW = process.add_noise(batch.latents_BCHW, noise.input_BCHW, timesteps_B)
        prior = _prior_of(batch, noisy_BCHW, timesteps_B, context) if batch.needs_prior else None
        output_BCHW = family.predict(noisy_BCHW, timesteps_B, batch.conditioning_for(family))
        target_BCHW = process.target(batch.latents_BCHW, noise.target_BCHW, timesteps_B)
        errors_BCHW = weighted_errors(output_BCHW, target_BCHW, batch.area_weights_B1HW, prior)
        weights_B = timestep_weights(process, timesteps_B, weighting=self.weighting, gamma=self.gamma)
        return StepLoss(
            loss=sample_losses(errors_BCHW, weights_B, batch.loss_weights_B).mean(),
            num_samples=batch.num_samples,
            group_samples=batch.group_samples,
            is_last_micro_batch=batch.is_last_micro_batch,
            zero_gradient_is_legal=batch.is_prior_only,
        )

    def branches(self) -> Mapping[str, TrainingMethod]:
        """Return the only branch: the method has no state, so it can be tried itself."""
        return {"denoising": self}

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return an empty state: the method has no state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: there is no state."""


def _prior_of(batch: Batch, noisy_BCHW: torch.Tensor, timesteps_B: torch.Tensor, context: StepContext) -> Prior:
    """Return the original model's prediction for a batch, from its own text encoders where those are trained.

    It comes before the prediction with the current weights, so that no graph through them is alive. It is computed for
    the whole batch: a smaller one would change the last bits, and a new adapter would not be exactly the original.
    """
    with context.prior():
        prediction_BCHW = context.family.predict(noisy_BCHW, timesteps_B, batch.conditioning_for(context.family))
    return Prior(prediction_BCHW, batch.prior_samples, batch.prior_weights_B1HW)


def denoise_of(loss: Loss, noise: Noise) -> Denoise:
    """Return the method with a run's loss and noise settings."""
    return Denoise(loss.weighting, loss.gamma, noising_of(noise))


def build(settings: object, training: Training, reward: object) -> Denoise:
    """Return the method; it has no settings of its own and needs no reward."""
    return denoise_of(training.loss, training.noise)
