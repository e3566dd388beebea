"""The check that a policy predicts what it sampled with: before its first update every probability ratio is 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from modules.system.errors import DarkroomError
from trainer.events import WarningRaised
from trainer.methods.protocol import StepContext

_EXACT, _ROUNDED = 1e-5, 1e-3  # how far a ratio may be from 1 in float32 on a CPU, and at most elsewhere


@dataclass(eq=False)
class RatioCheck:
    """Collects the ratios of the first optimizer step on a rollout; read from the device once, at the step's end."""

    largest_error: torch.Tensor | None = None

    def add(self, log_ratios_B: torch.Tensor, *, is_first: bool) -> None:
        """Add the ratios of a micro-batch; with the first one of a step, those of earlier steps are forgotten."""
        error = log_ratios_B.detach().expm1().abs().max()
        former = None if is_first else self.largest_error
        self.largest_error = error if former is None else torch.maximum(former, error)

    def finish(self, context: StepContext, *, clip_range: float) -> WarningRaised | None:
        """Return a warning if a ratio is too far from 1; raises DarkroomError if one is in float32 on a CPU.

        Elsewhere, in 16 bits or on a GPU, whose kernels may differ with and without gradient, that is outside of the
        clip range: such ratios are not trained.

        Reasons are dropout, other weights or another batch than those that sampled, or random operations in the model.
        """
        error = 0.0 if self.largest_error is None else float(self.largest_error)
        is_exact = context.device.is_cpu and _computes_in_float32(context)
        if not error > (_EXACT if is_exact else min(_ROUNDED, clip_range)):
            return None
        message = (
            "The model does not predict the same in training as while sampling: before the first step the probability "
            f"ratio differs from 1 by {error:.2g}."
        )
        if is_exact:
            raise DarkroomError(message, advice="Switch off dropout and everything else that is random in the model.")
        return WarningRaised(
            message,
            f"Ratios outside of the clip range of {clip_range:g} are not trained. Widen it, or choose float32 without "
            "TF32.",
        )


@dataclass(eq=False)
class ClipCheck:
    """Collects whether all ratios of an optimizer step are clipped; read from the device once, at the step's end."""

    are_all_outside: torch.Tensor | None = None

    def add(self, is_outside_B: torch.Tensor, *, is_first: bool) -> None:
        """Add the ratios of a micro-batch (B); with the first one of a step, those of earlier steps are forgotten."""
        found = is_outside_B.all()
        former = None if is_first else self.are_all_outside
        self.are_all_outside = found if former is None else former & found

    def finish(self, *, clip_range: float) -> WarningRaised | None:
        """Return a warning if all ratios of the step are outside of the clip range."""
        if self.are_all_outside is None or not bool(self.are_all_outside):
            return None
        return WarningRaised(
            f"In a step the probability ratios of all images are outside of the clip range of {clip_range:g}: the "
            "images whose ratio has moved as their reward asks train nothing.",
            "Widen the clip range, lower the learning rate, or use fewer inner epochs. The metric clip_fraction shows "
            "how many ratios are outside.",
        )


def _computes_in_float32(context: StepContext) -> bool:
    denoisers = (p.module for p in context.family.parts.values() if p.spec.role == "denoiser")
    in_float32 = all(p.dtype == torch.float32 for module in denoisers for p in module.parameters())
    return in_float32 and not torch.is_autocast_enabled(context.device.type)
