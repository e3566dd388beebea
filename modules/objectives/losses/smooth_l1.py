"""Smooth L1 (Girshick 2015, eq. 3): the Huber loss divided by delta, so that its linear part has the slope 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.objectives.losses.huber import huber, pseudo_huber
from modules.objectives.losses.spec import LossSpec

if TYPE_CHECKING:
    import torch


def smooth_l1(differences: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Return `d^2 / (2 delta)` where `|d|` is at most delta, and `|d| - delta / 2` elsewhere, as torch defines it."""
    return huber(differences, delta) / delta


def pseudo_smooth_l1(differences: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Return `2 (sqrt(d^2 + delta^2) - delta)`, sd-scripts' "smooth_l1"."""
    return pseudo_huber(differences, delta) / delta


SPEC = LossSpec(
    "smooth_l1",
    "Smooth L1",
    "The weight of the smooth L1 loss: the Huber loss divided by delta, so that large errors count the same whatever "
    "delta is.",
    smooth_l1,
    pseudo_smooth_l1,
)
