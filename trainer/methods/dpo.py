"""Diffusion-DPO: the model learns to prefer the chosen image of a pair to the rejected one.

Wallace et al. 2023 (arXiv 2311.12908). Both images of a pair share their caption, timestep, noise and size
conditioning, and one forward pass predicts both. The reference is the model as it was before training. Timesteps and
noise follow the run's noise settings, as in denoising.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from modules.config.sections.training import Training
from modules.data.batch import Batch
from modules.data.conditioning import Conditioning
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

    def of(
        self, errors: PairErrors, reference: PairErrors | None, *, num_timesteps: int
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the loss of each pair, float32 of shape (B,), and the metrics, each of shape ()."""
        if self.kind == "mapo" or reference is None:
            margins_B = mapo_margins(errors, num_timesteps=num_timesteps, scale=_MAPO_SCALE)
            return mapo_losses(errors, margins_B, beta=self.beta), preference_metrics(margins_B, errors)
        margins_B = implicit_margins(errors, reference, beta=self.beta)
        losses_B = preference_losses(margins_B, loss=self.kind, label_smoothing=self.label_smoothing)
        if self.sft_weight:
            losses_B = losses_B + self.sft_weight * errors.chosen_B
        return losses_B, preference_metrics(margins_B, errors.minus(reference))


@dataclass(frozen=True, slots=True)
class Dpo:
    """The method on given pairs, with its timesteps and noise."""

    pair_loss: PairLoss
    noising: Noising = field(default_factory=Noising)

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
        losses_B, metrics = pair_losses(
            LatentPairs(
                batch.latents_BCHW,
                batch.rejected_latents_BCHW,
                lambda: batch.conditioning_for(context.family),
                position_of(batch),
            ),
            context,
            pair_loss=self.pair_loss,
            noising=self.noising,
            reference=context.prior,
        )
        return StepLoss(
            loss=(losses_B * batch.loss_weights_B).mean(),
            num_samples=batch.num_counted,
            group_samples=batch.group_samples,
            is_last_micro_batch=batch.is_last_micro_batch,
            zero_gradient_is_legal=bool(batch.same_pairs) and all(batch.same_pairs),
            metrics=metrics,
        )

    def branches(self) -> Mapping[str, TrainingMethod]:
        """Return the only branch: the method has no state, so it can be tried itself."""
        return {"pairs": self}

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return an empty state: the method has no state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: there is no state."""


@dataclass(frozen=True, eq=False)
class LatentPairs:
    """The latents of B pairs, (B, C, H, W) each, on the training device.

    `conditioning()` returns the conditioning of their captions, B entries with size conditioning, from the current
    model. `position` selects the timesteps and the noise.
    """

    chosen_BCHW: torch.Tensor
    rejected_BCHW: torch.Tensor
    conditioning: Callable[[], Conditioning]
    position: BatchPosition


def pair_losses(
    pairs: LatentPairs,
    context: StepContext,
    *,
    pair_loss: PairLoss,
    noising: Noising,
    reference: Callable[[], AbstractContextManager[None]],
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the loss of each pair, (B,), and the metrics. Within `reference()` the model is the reference.

    The reference comes first, so that no graph through the trained weights is alive while they are exchanged. It
    predicts the same whole batch, so that an untrained adapter has exactly the reference's errors.
    """
    family, process, num_pairs = context.family, context.family.process, len(pairs.chosen_BCHW)
    timesteps_B, noise = noising.draw(pairs.chosen_BCHW, pairs.position, context)
    clean_BCHW = torch.cat([pairs.chosen_BCHW, pairs.rejected_BCHW])
    timesteps_B = torch.cat([timesteps_B, timesteps_B])
    noisy_BCHW = process.add_noise(clean_BCHW, torch.cat([noise.input_BCHW, noise.input_BCHW]), timesteps_B)
    target_BCHW = process.target(clean_BCHW, torch.cat([noise.target_BCHW, noise.target_BCHW]), timesteps_B)

    def errors() -> PairErrors:
        conditioning = pairs.conditioning().select([*range(num_pairs)] * 2)
        return pair_errors(process, family.predict(noisy_BCHW, timesteps_B, conditioning), target_BCHW, timesteps_B)

    of_reference = None
    if pair_loss.needs_reference:
        with reference():
            of_reference = errors()
    return pair_loss.of(errors(), of_reference, num_timesteps=process.num_timesteps)


def build(chosen: settings.Dpo, training: Training, reward: object) -> Dpo:
    """Return the method from its settings and the run's noise settings; it needs no reward."""
    beta = chosen.mapo_beta if chosen.loss == "mapo" else chosen.beta
    pair_loss = PairLoss(chosen.loss, beta, chosen.label_smoothing, chosen.sft_weight)
    return Dpo(pair_loss, noising_of(training.noise))
