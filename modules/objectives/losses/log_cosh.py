"""The log-cosh loss: `d^2 / 2` for small differences, `|d| - log 2` for large ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from modules.objectives.losses.spec import LossSpec

if TYPE_CHECKING:
    import torch


def log_cosh(differences: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Return `log(cosh(d)) = |d| + log(1 + exp(-2 |d|)) - log 2`, which does not overflow in this form."""
    sizes = differences.abs()
    return sizes + (-2.0 * sizes).exp().log1p() - math.log(2.0)


SPEC = LossSpec(
    "log_cosh",
    "Log-cosh",
    "The weight of the log-cosh loss: quadratic for small errors, linear for large ones.",
    log_cosh,
)
