"""Diffusion-DPO: the model learns to prefer the chosen image of a pair to the rejected one.

Wallace et al. 2023 (arXiv 2311.12908). Both images of a pair share their caption, timestep, noise and size
conditioning, and one forward pass predicts both. The reference is the model as it was before training. Timesteps and
noise follow the run's noise settings, as in denoising.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from modules.config.sections.training import Training
from modules.data.batch import Batch
from modules.data.conditioning import Conditioning
from modules.data.pair_noise import noise_seeds
from modules.diffusion.timesteps.drawing import BatchPosition
from modules.objectives.methods import dpo as settings
from modules.objectives.preference import (
    PairErrors,
    implicit_margins,
    mapo_losses,
    mapo_margins,
    pair_errors,
    preference_losses,
    preference_metrics,
)
from modules.sampling.denoising_loop import initial_noise
from modules.system.devices import CPU, move
from trainer.methods.automatic_beta import AutomaticBeta
from trainer.methods.noising import Noising, noising_of, position_of
from trainer.methods.protocol import StepContext, StepLoss, TrainingMethod

_MAPO_SCALE = 0.5  # of the errors, as in the authors' code


@dataclass(frozen=True, slots=True)
class PairLoss:
    """The loss of the errors of pairs; "mapo" needs no reference model."""

    kind: Literal["sigmoid", "ipo", "mapo"] = "sigmoid"
    beta: float = 2000.0
    label_smoothing: float = 0.0
    sft_weight: float = 0.0

    @property
    def needs_reference(self) -> bool:
        """Whether it compares the model with a reference model."""
        return self.kind != "mapo"

    def of(self, errors: PairErrors, reference: PairErrors | None, *, num_timesteps: int) -> PairLosses:
        """Return the losses of pairs, float32."""
        if self.kind == "mapo" or reference is None:
            margins_B = mapo_margins(errors, num_timesteps=num_timesteps, scale=_MAPO_SCALE)
            losses_B = mapo_losses(errors, margins_B, beta=self.beta)
            return PairLosses(losses_B, margins_B, preference_metrics(margins_B, errors))
        margins_B = implicit_margins(errors, reference, beta=self.beta)
        losses_B = preference_losses(margins_B, loss=self.kind, label_smoothing=self.label_smoothing)
        if self.sft_weight:
            losses_B = losses_B + self.sft_weight * errors.chosen_B
        return PairLosses(losses_B, margins_B, preference_metrics(margins_B, errors.minus(reference)))


@dataclass(frozen=True, slots=True)
class Dpo:
    """The method on given pairs, with its timesteps and noise, and the beta of each step in place of the loss's.

    With `uses_own_noise` images get the noise that they were sampled from, where it is known.
    """

    pair_loss: PairLoss
    noising: Noising = field(default_factory=Noising)
    beta: AutomaticBeta | None = None
    uses_own_noise: bool = False

    def prepare(self, context: StepContext) -> None:
        """Nothing to prepare."""

    def batches(self, loader: Iterable[Batch], context: StepContext) -> Iterator[Batch]:
        """Yield the loader's batches unchanged."""
        yield from loader

    def loss(self, batch: Batch, context: StepContext) -> StepLoss:
        """Return the weighted mean of the pairs' losses, each at its own random timestep.

        Raises ValueError for a batch without rejected images.
        """
        if batch.rejected_latents_BCHW is None:
            raise ValueError("Diffusion-DPO needs pairs, but the batch has no rejected images.")
        pair_loss = self.pair_loss if self.beta is None else replace(self.pair_loss, beta=self.beta.value)
        losses = pair_losses(
            LatentPairs(
                batch.latents_BCHW,
                batch.rejected_latents_BCHW,
                lambda: batch.conditioning_for(context.family),
                position_of(batch),
                self._own_noises(batch, context),
                area_weights_B1HW=batch.area_weights_B1HW,
            ),
            context,
            pair_loss=pair_loss,
            noising=self.noising,
            reference=context.prior,
        )
        metrics: dict[str, float | torch.Tensor] = {**losses.metrics}
        if self.beta is not None:
            metrics["beta"] = pair_loss.beta
            self.beta.add(
                losses.margins_B,
                step=batch.step,
                is_last=batch.is_last_micro_batch,
                counts=batch.counts,
                context=context,
            )
        return StepLoss(
            loss=(losses.losses_B * batch.loss_weights_B).mean(),
            num_samples=batch.num_counted,
            group_samples=batch.group_samples,
            is_last_micro_batch=batch.is_last_micro_batch,
            zero_gradient_is_legal=bool(batch.same_pairs) and all(batch.same_pairs),
            metrics=metrics,
        )

    def _own_noises(self, batch: Batch, context: StepContext) -> torch.Tensor | None:
        """Return the noises that the images of a batch were sampled from, (2 B, C, H, W); NaN for unknown ones."""
        if not self.uses_own_noise:
            return None
        seeds = [noise_seeds(file) if file is not None else None for file in batch.pair_files]
        if not any(seeds):
            return None
        shape = batch.latents_BCHW.shape[1:]

        def noise_of(seed: int | None) -> torch.Tensor:
            if seed is None:
                return torch.full(shape, math.nan)
            return initial_noise(shape, seed=seed, device=CPU)[0]

        noises = [noise_of(pair[side] if pair else None) for side in (0, 1) for pair in seeds]
        return move(torch.stack(noises), context.device)

    def branches(self) -> Mapping[str, TrainingMethod]:
        """Return the only branch: the method itself, at the beta with which it begins."""
        return {"pairs": replace(self, beta=None)}

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return the state of beta; empty for a fixed one."""
        return {} if self.beta is None else self.beta.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        if self.beta is not None:
            self.beta.load_state_dict(state)


@dataclass(frozen=True, eq=False)
class LatentPairs:
    """The latents of B pairs, (B, C, H, W) each, on the training device.

    `conditioning()` returns the conditioning of their captions, B entries with size conditioning, from the current
    model. `position` selects the timesteps and the noise. `noises_BCHW` are the noises that the images were sampled
    from, the chosen images' first, (2 B, C, H, W): then the loss uses these and no new noise (PNAPO), except for images
    whose noise is NaN. The area weights of a pair count for both of its images.
    """

    chosen_BCHW: torch.Tensor
    rejected_BCHW: torch.Tensor
    conditioning: Callable[[], Conditioning]
    position: BatchPosition
    noises_BCHW: torch.Tensor | None = None
    area_weights_B1HW: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class PairLosses:
    """The loss and the margin of each pair, (B,), and the metrics, each of shape ()."""

    losses_B: torch.Tensor
    margins_B: torch.Tensor
    metrics: Mapping[str, torch.Tensor]


def pair_losses(
    pairs: LatentPairs,
    context: StepContext,
    *,
    pair_loss: PairLoss,
    noising: Noising,
    reference: Callable[[], AbstractContextManager[None]],
) -> PairLosses:
    """Return the losses of pairs. Within `reference()` the model is the reference.

    The reference comes first, so that no graph through the trained weights is alive while they are exchanged. It
    predicts the same whole batch, so that an untrained adapter has exactly the reference's errors.

    The path of a flow model from a noise to its image is nearly straight, so the latents in between are closer to the
    interpolation of these two than to one with any other noise (Lu et al. 2026, arXiv 2605.09433, section 4).
    """
    family, process, num_pairs = context.family, context.family.process, len(pairs.chosen_BCHW)
    timesteps_B, noise = noising.draw(pairs.chosen_BCHW, pairs.position, context)
    clean_BCHW = torch.cat([pairs.chosen_BCHW, pairs.rejected_BCHW])
    timesteps_B = torch.cat([timesteps_B, timesteps_B])
    input_BCHW, goal_BCHW = (torch.cat([one, one]) for one in (noise.input_BCHW, noise.target_BCHW))
    if (own_BCHW := pairs.noises_BCHW) is not None:
        input_BCHW, goal_BCHW = (torch.where(own_BCHW.isnan(), one, own_BCHW) for one in (input_BCHW, goal_BCHW))
    noisy_BCHW = process.add_noise(clean_BCHW, input_BCHW, timesteps_B)
    target_BCHW = process.target(clean_BCHW, goal_BCHW, timesteps_B)

    def errors() -> PairErrors:
        conditioning = pairs.conditioning().select([*range(num_pairs)] * 2)
        output_BCHW = family.predict(noisy_BCHW, timesteps_B, conditioning)
        return pair_errors(process, output_BCHW, target_BCHW, timesteps_B, pairs.area_weights_B1HW)

    of_reference = None
    if pair_loss.needs_reference:
        with reference():
            of_reference = errors()
    return pair_loss.of(errors(), of_reference, num_timesteps=process.num_timesteps)


def build(chosen: settings.Dpo, training: Training, reward: object) -> Dpo:
    """Return the method from its settings and the run's noise settings; it needs no reward."""
    beta = chosen.mapo_beta if chosen.loss == "mapo" else chosen.beta
    pair_loss = PairLoss(chosen.loss, beta, chosen.label_smoothing, chosen.sft_weight)
    is_automatic = chosen.target_margin > 0 and pair_loss.needs_reference
    automatic = AutomaticBeta(chosen.target_margin, beta) if is_automatic else None
    return Dpo(pair_loss, noising_of(training.noise), automatic, chosen.loss_noise == "generated")
