"""A frozen copy of trained weights, with which a fine-tune can also predict like its original model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import nn


class FrozenCopy(nn.Module):
    """The present values of weights, and a context in which the weights have these values again.

    It is a module so that a `Placement` moves it: in the context each copy must be on the device of its weight. The
    weights are exchanged, not copied, so the context costs no memory and no time.
    """

    def __init__(self, weights: Iterable[nn.Parameter]) -> None:
        """Copy the weights, in their own dtype and on their own device."""
        super().__init__()
        self.weights = tuple(weights)  # a tuple, so that they do not become parameters of this module
        self.copies = nn.ParameterList(nn.Parameter(w.detach().clone(), requires_grad=False) for w in self.weights)

    def refresh(self, decay: float = 0.0) -> None:
        """Copy the present values of the weights; with a decay, keep that share of the former values (EMA).

        The average is rounded to the dtype of the weights.
        """
        with torch.no_grad():
            for weight, copy in zip(self.weights, self.copies, strict=True):
                copy.copy_(torch.lerp(weight.float(), copy.float(), decay) if decay else weight)

    @contextlib.contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Return a context in which the weights have their copied values; their own are restored bit for bit.

        No gradient is recorded inside, and no graph through the weights may be alive: its backward pass would mix both.
        """
        values = [weight.data for weight in self.weights]
        with torch.no_grad():
            try:
                for weight, copy in zip(self.weights, self.copies, strict=True):
                    weight.data = copy.data
                yield
            finally:
                for weight, value in zip(self.weights, values, strict=True):
                    weight.data = value
