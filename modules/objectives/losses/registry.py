"""The elementwise losses: their record, their formulas, and the list of all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch


HuberForm = Literal["huber", "pseudo_huber"]

# `loss(differences, delta)` returns the loss of each difference between prediction and target, in their shape and not
# negative. `delta` has a shape that broadcasts to it; only losses with `uses_delta` read it.
ElementLoss = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]


@dataclass(frozen=True, slots=True)
class LossSpec:
    """A loss of single elements; its setting is `<name>_strength`.

    `loss` is its formula, `pseudo` the formula of its pseudo-Huber form, for losses that have one.
    """

    name: str
    label: str
    help: str
    loss: ElementLoss
    pseudo: ElementLoss | None = None

    @property
    def uses_delta(self) -> bool:
        """Whether it changes from quadratic to linear at delta; all of these have both forms."""
        return self.pseudo is not None

    def in_form(self, form: HuberForm) -> ElementLoss:
        """Return its formula in a form; losses with one form ignore it."""
        return self.loss if self.pseudo is None or form == "huber" else self.pseudo


# The squared error, the loss of Ho et al. 2020 (eq. 14).


def squared_error(differences: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Return `d^2`."""
    return differences.square()


SQUARED = LossSpec("mse", "MSE", "The weight of the mean squared error, the usual loss.", squared_error)


def absolute_error(differences: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Return `|d|`."""
    return differences.abs()


ABSOLUTE = LossSpec("mae", "MAE", "The weight of the mean absolute error.", absolute_error)


def log_cosh(differences: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Return `log(cosh(d)) = |d| + log(1 + exp(-2 |d|)) - log 2`, which does not overflow in this form."""
    sizes = differences.abs()
    return sizes + (-2.0 * sizes).exp().log1p() - math.log(2.0)


LOG_COSH = LossSpec(
    "log_cosh",
    "Log-cosh",
    "The weight of the log-cosh loss: quadratic for small errors, linear for large ones.",
    log_cosh,
)


# The Huber loss, quadratic below delta and linear above (Huber 1964), and its smooth pseudo-Huber form.


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


HUBER = LossSpec(
    "huber", "Huber", "The weight of the Huber loss: quadratic below delta, linear above.", huber, pseudo_huber
)


# Smooth L1 (Girshick 2015, eq. 3): the Huber loss divided by delta, so that its linear part has the slope 1.


def smooth_l1(differences: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Return `d^2 / (2 delta)` where `|d|` is at most delta, and `|d| - delta / 2` elsewhere, as torch defines it."""
    return huber(differences, delta) / delta


def pseudo_smooth_l1(differences: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Return `2 (sqrt(d^2 + delta^2) - delta)`, sd-scripts' "smooth_l1"."""
    return pseudo_huber(differences, delta) / delta


SMOOTH_L1 = LossSpec(
    "smooth_l1",
    "Smooth L1",
    "The weight of the smooth L1 loss: the Huber loss divided by delta, so that large errors count the same whatever "
    "delta is.",
    smooth_l1,
    pseudo_smooth_l1,
)


LOSSES: Mapping[str, LossSpec] = {
    spec.name: spec
    for spec in (
        SQUARED,
        ABSOLUTE,
        LOG_COSH,
        HUBER,
        SMOOTH_L1,
    )
}
