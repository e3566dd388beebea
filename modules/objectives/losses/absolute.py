"""The absolute error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.objectives.losses.spec import LossSpec

if TYPE_CHECKING:
    import torch


def absolute(differences: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Return `|d|`."""
    return differences.abs()


SPEC = LossSpec("mae", "MAE", "The weight of the mean absolute error.", absolute)
