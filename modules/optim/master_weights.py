"""Training weights that are kept in 16 bits: the optimizer moves a float32 master weight for each of them.

Two ways. "master": the master weight stays, and the 16-bit weight is its rounded image (Micikevicius et al. 2018,
section 3.1): exact, four more bytes a weight. "stochastic": the master weight lives only while its weight is moved, and
is rounded up or down at random, so that small updates count on average (Zamirai et al. 2020, algorithm 1): no more
bytes, some noise. Weights are moved a few at a time (`moving.py`), so that little of this is there at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

Rounding = Literal["master", "stochastic"]

_ROUNDED_AT_ONCE = 1 << 20  # rounding takes some five times the bytes of what it rounds


@dataclass(eq=False)
class MasterWeight:
    """What the optimizer moves in place of a 16-bit weight of the model."""

    weight: nn.Parameter
    moved: nn.Parameter
    rounding: Rounding

    @classmethod
    def of(cls, weight: nn.Parameter, rounding: Rounding) -> MasterWeight:
        """Return the master weight of a weight. Raises ValueError for stochastic rounding to anything but bfloat16."""
        if rounding == "stochastic" and weight.dtype != torch.bfloat16:
            raise ValueError(f"stochastic rounding goes to bfloat16, not to {weight.dtype}")
        value = weight.detach().float() if rounding == "master" else weight.detach().new_empty(0, dtype=torch.float32)
        return cls(weight, nn.Parameter(value), rounding)

    @property
    def kept(self) -> nn.Parameter:
        """The parameter that holds the exact value between steps: what is saved and averaged."""
        return self.moved if self.rounding == "master" else self.weight

    @property
    def has_gradient(self) -> bool:
        """Whether a gradient lies at the weight, or was taken from it."""
        return self.weight.grad is not None or self.moved.grad is not None

    def take_gradient(self) -> None:
        """Take the weight's gradient, in float32. A master weight that is empty between steps has to have its value."""
        self.moved.grad = None if self.weight.grad is None else self.weight.grad.float()
        self.weight.grad = None

    def fill(self) -> None:
        """Before a step: take the weight's value, where it is not kept, and its gradient, unless it was taken."""
        if self.rounding == "stochastic":
            self.moved.data = self.weight.detach().float()
        if self.weight.grad is not None:
            self.take_gradient()

    @torch.no_grad()
    def give_value(self, generator: torch.Generator | None = None) -> None:
        """After a step, or once its value was set: let the weight follow. Stochastic rounding needs the generator."""
        if self.rounding == "master":
            self.weight.copy_(self.moved)
        elif self.moved.numel():
            assert generator is not None, "stochastic rounding draws from a generator of its own"
            rounded, values = torch.atleast_1d(self.weight.detach()), torch.atleast_1d(self.moved.detach())
            num_rows = max(1, _ROUNDED_AT_ONCE // values[0].numel())
            for into, part in zip(rounded.split(num_rows), values.split(num_rows), strict=True):
                into.copy_(round_stochastically(part, generator))

    def release(self) -> None:
        """Let go of what only a step needs."""
        self.moved.grad = None
        if self.rounding == "stochastic":
            self.moved.data = self.moved.new_empty(0)


def round_stochastically(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return float32 values as bfloat16, rounded up with the chance of what rounding down would lose.

    bfloat16 is the upper half of float32: a random number is added to the lower half, which is then cut off. Values
    that are not finite stay what they are.
    """
    noise = torch.randint(0, 1 << 16, values.shape, dtype=torch.int32, device=values.device, generator=generator)
    bits = values.detach().contiguous().view(torch.int32)
    rounded = ((bits + noise) & -(1 << 16)).view(torch.float32)
    return torch.where(values.isfinite() & rounded.isfinite(), rounded, values).to(torch.bfloat16)
