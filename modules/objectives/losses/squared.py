"""The squared error, the loss of Ho et al. 2020 (eq. 14)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.objectives.losses.spec import LossSpec

if TYPE_CHECKING:
    import torch


def squared(differences: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Return `d^2`."""
    return differences.square()


SPEC = LossSpec("mse", "MSE", "The weight of the mean squared error, the usual loss.", squared)
