"""DGPO: the objective of a policy on the forward process (`forward_policy.py`) that prefers groups to each other.

How much a group counts depends on all of its images, which are in several micro-batches. So before each optimizer step
the models predict every pass of it without gradient. Several processes share these passes as they share the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from modules.config.sections.training import Training
from modules.objectives.forward_policy import group_preference_losses, group_shares, matching_errors
from modules.objectives.methods import dgpo as settings
from modules.objectives.preference import implicit_accuracy
from modules.rewards.composite import CompositeReward
from modules.system.devices import CPU, move
from trainer.methods.forward_policy import (
    ForwardPolicy,
    Losses,
    Metrics,
    NoisedChunk,
    add_ratio_metrics,
    forward_policy,
)
from trainer.methods.policy_batches import PolicyBatch
from trainer.methods.protocol import StepContext

Group = tuple[int, int]
"""The groups of a micro-batch, one for each of its rows: the number of its batch of the loader, and of the pass."""


@dataclass(frozen=True, eq=False)
class KnownPass:
    """The facts of a pass that its loss needs before the step: the old model's errors and the margins of the images'
    groups, (B,) each, and the original model's outputs for the KL.
    """

    old_errors_B: torch.Tensor
    margins_B: torch.Tensor
    original_BCHW: torch.Tensor | None


@dataclass(frozen=True)
class GroupPreference:
    """DGPO. `compares_with_original`: the reference is the original model, not the one that samples."""

    beta: float
    clip_range: float
    advantage_clip: float
    compares_with_original: bool
    may_clip: bool = True
    shares_noise: bool = True

    def prepare(self, context: StepContext) -> None:
        """Do nothing: the loss is defined for every process."""

    def before_step(
        self, policy: ForwardPolicy, batches: Sequence[PolicyBatch], context: StepContext
    ) -> Mapping[int, KnownPass]:
        """Return the facts of each micro-batch by its number, on the offload device."""
        errors_B, _ = _predict_all(policy, batches, context, context.rollout(batches[0].step))
        old_errors_B, _ = _predict_all(policy, batches, context, policy.old.active(context))
        original_errors_B, outputs_BCHW, has_kl = old_errors_B, list[torch.Tensor](), policy.kl_weight > 0
        if self.compares_with_original or has_kl:
            original_errors_B, outputs_BCHW = _predict_all(policy, batches, context, context.prior(), keeps=has_kl)
        reference_B = original_errors_B if self.compares_with_original else old_errors_B
        margins = self._margins(batches, errors_B, reference_B, policy.sampling.samples_per_prompt, context)
        return {
            batch.micro_batch: KnownPass(
                old_errors_B[number], margins[_group_of(batch)], outputs_BCHW[number] if has_kl else None
            )
            for number, batch in enumerate(batches)
        }

    def losses(
        self, policy: ForwardPolicy, noised: NoisedChunk, known: Mapping[int, KnownPass], metrics: Metrics
    ) -> Losses:
        """Return the losses (`ForwardObjective`)."""
        device, before = noised.context.device, known[noised.batch.micro_batch]
        old_errors_B, margins_B = move(before.old_errors_B, device), move(before.margins_B, device)
        original_BCHW = None if before.original_BCHW is None else move(before.original_BCHW, device)
        new_BCHW = noised.predict()
        errors_B = matching_errors(new_BCHW, noised.target_BCHW)
        add_ratio_metrics(metrics, old_errors_B - errors_B, clip_range=self.clip_range)
        metrics["margin"], metrics["implicit_accuracy"] = margins_B.mean(), implicit_accuracy(margins_B)
        losses_B = group_preference_losses(
            errors_B, old_errors_B, self._clip(noised.advantages_B), margins_B, clip_range=self.clip_range
        )
        return losses_B, original_BCHW, new_BCHW

    def _margins(
        self,
        batches: Sequence[PolicyBatch],
        errors_B: Sequence[torch.Tensor],
        reference_B: Sequence[torch.Tensor],
        group_size: int,
        context: StepContext,
    ) -> dict[Group, torch.Tensor]:
        """Return the margins of all groups of a step, from the errors of the passes of this process and the others."""
        shares: dict[Group, torch.Tensor] = {}
        for batch, new_B, of_reference_B in zip(batches, errors_B, reference_B, strict=True):
            advantages_B = self._clip(batch.chunk.advantages_B)
            own_B = group_shares(
                new_B.double(), of_reference_B.double(), advantages_B, beta=self.beta, group_size=group_size
            )
            shares[_group_of(batch)] = shares.get(_group_of(batch), 0) + own_B * batch.counts
        margins: dict[Group, torch.Tensor] = {}
        for of_process in context.ranks.gather(shares):
            for group, share_B in of_process.items():
                margins[group] = margins.get(group, 0) + share_B
        return {group: margin_B.float() for group, margin_B in margins.items()}

    def _clip(self, advantages_B: torch.Tensor) -> torch.Tensor:
        return advantages_B.clamp(-self.advantage_clip, self.advantage_clip)


def _group_of(batch: PolicyBatch) -> Group:
    return batch.chunk.micro_batch, batch.number


def _predict_all(
    policy: ForwardPolicy,
    batches: Sequence[PolicyBatch],
    context: StepContext,
    model: AbstractContextManager[None],
    *,
    keeps: bool = False,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the errors of a model, (B,) on the CPU, and if it `keeps` them the outputs on the offload device."""
    errors_B, outputs_BCHW = [], []
    with model:
        for batch in batches:
            context.check()
            noised = policy.noise_images(batch, context)
            output_BCHW = noised.predict()
            errors_B.append(move(matching_errors(output_BCHW, noised.target_BCHW), CPU))
            if keeps:
                outputs_BCHW.append(move(output_BCHW, context.temp_device))
    return errors_B, outputs_BCHW


def build(chosen: settings.Dgpo, training: Training, reward: CompositeReward | None) -> ForwardPolicy:
    """Return the method from its settings and the run's noise settings. Raises ValueError without a reward."""
    objective = GroupPreference(
        chosen.beta, chosen.clip_range, chosen.advantage_clip, compares_with_original=chosen.reference == "original"
    )
    return forward_policy(chosen, training, reward, objective)
