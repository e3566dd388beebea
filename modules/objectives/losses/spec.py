"""The record of an elementwise loss. Torch-free."""

from __future__ import annotations

from collections.abc import Callable
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

    `loss` is its formula, `pseudo` that of its pseudo-Huber form, for losses that have one.
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
