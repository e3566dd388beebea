"""Denoising, the standard method: noise is added to the latents, the model predicts it, the error is the loss."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from modules.config.sections.training import Training
from modules.data.batch import Batch
from modules.data.conditioning import Conditioning
from modules.diffusion.process import NoiseProcess
from modules.diffusion.training_noise import TrainingNoise
from modules.diffusion.weightings import WEIGHTINGS
from modules.objectives.denoise import Prior, sample_losses, timestep_weights, weighted_errors
from modules.objectives.learned_weighting import LearnedWeighting
from modules.objectives.loss_mix import LossMix, loss_mix_of
from modules.optim.scaling import loss_factor
from trainer.methods.noising import Noising, noising_of, position_of
from trainer.methods.protocol import StepContext, StepLoss, TrainingMethod


@dataclass(frozen=True, eq=False)
class LossInputs:
    """All that the loss of a batch is computed from: its tensors, its timesteps and noise, its conditioning.

    B images; `area_weights_B1HW` and `loss_weights_B` are as in the batch; `prior` is the original model's prediction.
    """

    latents_BCHW: torch.Tensor
    timesteps_B: torch.Tensor
    noise: TrainingNoise
    conditioning: Conditioning
    inputs: Mapping[str, torch.Tensor]
    area_weights_B1HW: torch.Tensor | None
    loss_weights_B: torch.Tensor
    prior: Prior | None


@dataclass(frozen=True, slots=True)
class Denoise:
    """The denoising method: its loss weighting by name, the weighting's gamma, and its timesteps and noise.

    `mix` is the loss of single elements, `factor` a factor on the whole loss, `learned` the learned loss weights.
    """

    weighting: str = "none"
    gamma: float = 5.0
    noising: Noising = field(default_factory=Noising)
    mix: LossMix = field(default_factory=LossMix)
    factor: float = 1.0
    learned: LearnedWeighting | None = None

    def prepare(self, context: StepContext) -> None:
        """Raise DarkroomError for a loss or a weighting that is not defined for the model's noise process."""
        WEIGHTINGS[self.weighting].require(context.family.process)
        self.mix.require(context.family.process)

    def batches(self, loader: Iterable[Batch], context: StepContext) -> Iterator[Batch]:
        """Yield the loader's batches unchanged."""
        yield from loader

    def loss(self, batch: Batch, context: StepContext) -> StepLoss:
        """Return the weighted mean of the samples' denoising losses, each at its own random timestep."""
        drawn = self._draw_noise(batch, context)
        loss, metrics = self._reduce(self._errors(drawn, context), drawn, batch.step, context.family.process)
        return replace(self.as_step_loss(loss, batch), metrics=metrics)

    def draw(self, batch: Batch, context: StepContext) -> LossInputs | None:
        """Return the inputs of the loss; None with predictions of the original model, or learned weights."""
        return None if batch.needs_prior or self.learned is not None else self._draw_noise(batch, context)

    def loss_of(self, drawn: LossInputs, context: StepContext) -> torch.Tensor:
        """Return the loss, of shape ()."""
        return self._reduce(self._errors(drawn, context), drawn, 0, context.family.process)[0]

    def as_step_loss(self, loss: torch.Tensor, batch: Batch) -> StepLoss:
        """Return a loss of a batch with the samples that it is the mean of."""
        return StepLoss(
            loss=loss,
            num_samples=batch.num_counted,
            group_samples=batch.group_samples,
            is_last_micro_batch=batch.is_last_micro_batch,
            zero_gradient_is_legal=batch.is_prior_only,
        )

    def _draw_noise(self, batch: Batch, context: StepContext) -> LossInputs:
        timesteps_B, noise = self.noising.draw(batch.latents_BCHW, position_of(batch), context)
        prior = _prior_of(batch, noise, timesteps_B, context) if batch.needs_prior else None
        return LossInputs(
            batch.latents_BCHW,
            timesteps_B,
            noise,
            batch.conditioning_for(context.family),
            batch.inputs,
            batch.area_weights_B1HW,
            batch.loss_weights_B,
            prior,
        )

    def _errors(self, drawn: LossInputs, context: StepContext) -> torch.Tensor:
        """Return the errors with all weights of places, (B, C, H, W)."""
        family, process, timesteps_B = context.family, context.family.process, drawn.timesteps_B
        noisy_BCHW = process.add_noise(drawn.latents_BCHW, drawn.noise.input_BCHW, timesteps_B)
        output_BCHW = family.predict(noisy_BCHW, timesteps_B, drawn.conditioning, drawn.inputs)
        target_BCHW = process.target(drawn.latents_BCHW, drawn.noise.target_BCHW, timesteps_B)
        errors = self.mix.at(process, timesteps_B)
        return weighted_errors(output_BCHW, target_BCHW, drawn.area_weights_B1HW, drawn.prior, errors)

    def _reduce(
        self, errors_BCHW: torch.Tensor, drawn: LossInputs, step: int, process: NoiseProcess
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the loss of a batch, of shape (), from its errors with all weights, and its metrics."""
        timesteps_B, loss_weights_B = drawn.timesteps_B, drawn.loss_weights_B
        weights_B = timestep_weights(process, timesteps_B, weighting=self.weighting, gamma=self.gamma)
        if self.learned is None:
            loss = sample_losses(errors_BCHW, weights_B, loss_weights_B).mean()
            return (loss if self.factor == 1 else loss * self.factor), {}
        self.learned.begin(step)
        snr_B = process.snr(timesteps_B)
        losses_B = sample_losses(errors_BCHW, weights_B)
        self.learned.add(snr_B, losses_B, loss_weights_B)
        scales_B = (-self.learned.log_scales(snr_B)).exp()
        loss = (losses_B * scales_B * loss_weights_B).mean()
        unscaled = (losses_B * loss_weights_B).mean().detach()
        return loss * self.factor, {"unscaled_loss": unscaled}

    def branches(self) -> Mapping[str, TrainingMethod]:
        """Return the only branch: the method itself, with a copy of its learned weights."""
        return {"denoising": self if self.learned is None else replace(self, learned=self.learned.copy())}

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return the state of the learned weights; empty without them."""
        return {} if self.learned is None else self.learned.state_dict(step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the learned weights, if there are any."""
        if self.learned is not None:
            self.learned.load_state_dict(state)


def _prior_of(batch: Batch, noise: TrainingNoise, timesteps_B: torch.Tensor, context: StepContext) -> Prior:
    """Return the original model's prediction for a batch, from its own text encoders where those are trained.

    It comes before the prediction with the current weights, so that no graph through them is alive. It is computed for
    the whole batch: a smaller one would change the last bits, and a new adapter would not be exactly the original.
    """
    noisy_BCHW = context.family.process.add_noise(batch.latents_BCHW, noise.input_BCHW, timesteps_B)
    with context.prior():
        conditioning = batch.conditioning_for(context.family)
        prediction_BCHW = context.family.predict(noisy_BCHW, timesteps_B, conditioning, batch.inputs)
    return Prior(prediction_BCHW, batch.prior_samples, batch.prior_weights_B1HW)


def denoise_of(training: Training) -> Denoise:
    """Return the method with a run's loss and noise settings."""
    loss = training.loss
    return Denoise(
        loss.weighting,
        loss.gamma,
        noising_of(training.noise),
        loss_mix_of(loss.mix),
        loss_factor(loss.scaler, batch_size=training.batch_size, accumulation_steps=training.accumulation_steps),
        LearnedWeighting(loss.learned_weighting_rate) if loss.learned_weighting else None,
    )


def build(settings: object, training: Training, reward: object) -> Denoise:
    """Return the method; it has no settings of its own and needs no reward."""
    return denoise_of(training)
