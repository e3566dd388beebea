"""The Huber loss, quadratic below delta and linear above (Huber 1964), and its smooth pseudo-Huber form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.objectives.losses.spec import LossSpec

if TYPE_CHECKING:
    import torch


def huber(differences: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Return `d^2 / 2` where `|d|` is at most delta, and `delta (|d| - delta / 2)` elsewhere, as torch defines it."""
    sizes = differences.abs()
    limited = sizes.minimum(delta)
    return limited * (sizes - 0.5 * limited)


def pseudo_huber(differences: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Return `2 delta (sqrt(d^2 + delta^2) - delta)`: `d^2` for small differences, of slope 2 delta for large ones.

    Khrapov et al. 2024 (arXiv 2403.16728), with sd-scripts' factor 2. The root is rationalized, because the difference
    of two nearly equal numbers would have few correct digits.
    """
    squares = differences.square()
    return 2.0 * delta * squares / ((squares + delta * delta).sqrt() + delta)


SPEC = LossSpec(
    "huber", "Huber", "The weight of the Huber loss: quadratic below delta, linear above.", huber, pseudo_huber
)
