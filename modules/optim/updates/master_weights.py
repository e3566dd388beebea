"""Training low-precision (16-bit) weights: the optimizer updates a float32 master weight for each of them.

Two modes. "master": the master weight is kept, and the 16-bit weight is its rounded copy (Micikevicius et al. 2018,
section 3.1): exact, four more bytes per weight. "stochastic": the master weight exists only during its update, and is
rounded up or down at random, so that small updates count on average (Zamirai et al. 2020, algorithm 1): no extra bytes,
some noise. Weights are updated in slices (`sliced_step.py`), so that few float32 copies exist at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

Rounding = Literal["master", "stochastic"]

_ROUNDED_AT_ONCE = 1 << 20  # rounding needs about five times the bytes of the values it rounds


@dataclass(eq=False)
class MasterWeight:
    """The float32 parameter that the optimizer updates in place of a 16-bit weight of the model."""

    weight: nn.Parameter
    master: nn.Parameter
    rounding: Rounding

    @classmethod
    def of(cls, weight: nn.Parameter, rounding: Rounding) -> MasterWeight:
        """Return the master weight of a weight. Raises ValueError for stochastic rounding to anything but bfloat16."""
        if rounding == "stochastic" and weight.dtype != torch.bfloat16:
            raise ValueError(f"stochastic rounding supports bfloat16, not {weight.dtype}")
        value = weight.detach().float() if rounding == "master" else weight.detach().new_empty(0, dtype=torch.float32)
        return cls(weight, nn.Parameter(value), rounding)

    @property
    def exact(self) -> nn.Parameter:
        """The parameter that holds the exact value between steps: backups and EMA use it."""
        return self.master if self.rounding == "master" else self.weight

    @property
    def has_gradient(self) -> bool:
        """Whether the weight, or the master weight, has a gradient."""
        return self.weight.grad is not None or self.master.grad is not None

    def take_gradient(self) -> None:
        """Move the weight's gradient to the master weight, in float32. An empty master weight must be filled first."""
        self.master.grad = None if self.weight.grad is None else self.weight.grad.float()
        self.weight.grad = None

    def fill(self) -> None:
        """Before a step: copy the weight's value (stochastic rounding only) and move its gradient here."""
        if self.rounding == "stochastic":
            self.master.data = self.weight.detach().float()
        if self.weight.grad is not None:
            self.take_gradient()

    @torch.no_grad()
    def round_value(self) -> None:
        """Write the value of the master weight, which must not be empty, to the weight, rounded to nearest."""
        self.weight.copy_(self.master)

    @torch.no_grad()
    def write_back(self, generator: torch.Generator | None = None) -> None:
        """After an update of the master weight: write it to the weight. Stochastic rounding needs the generator."""
        if self.rounding == "master":
            self.weight.copy_(self.master)
        elif self.master.numel():
            assert generator is not None, "stochastic rounding needs a generator"
            rounded, values = torch.atleast_1d(self.weight.detach()), torch.atleast_1d(self.master.detach())
            num_rows = max(1, _ROUNDED_AT_ONCE // values[0].numel())
            for into, part in zip(rounded.split(num_rows), values.split(num_rows), strict=True):
                into.copy_(round_stochastically(part, generator))

    def release(self) -> None:
        """Free the tensors that are needed only during a step."""
        self.master.grad = None
        if self.rounding == "stochastic":
            self.master.data = self.master.new_empty(0)


def round_stochastically(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return float32 values as bfloat16, rounded up with a probability equal to the fraction that is cut off.

    bfloat16 is the upper half of float32: a random number is added to the lower half, which is then cut off. Values
    that are not finite are left unchanged.
    """
    noise = torch.randint(0, 1 << 16, values.shape, dtype=torch.int32, device=values.device, generator=generator)
    bits = values.detach().contiguous().view(torch.int32)
    rounded = ((bits + noise) & -(1 << 16)).view(torch.float32)
    return torch.where(values.isfinite() & rounded.isfinite(), rounded, values).to(torch.bfloat16)
