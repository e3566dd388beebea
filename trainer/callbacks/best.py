"""The lowest validation loss of a run so far, and how long ago that was."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Best:
    """The best loss, after which step it was measured, and how many measurements in a row were not better since.

    `measured_on` stands for the pictures and noise levels: losses on others cannot be compared.
    """

    measured_on: str
    loss: float | None = None
    step: int | None = None
    num_worse: int = 0

    def after(self, loss: float, step: int, *, counts: bool) -> Self:
        """Return the best after one more measurement; a loss that is no number is not better than any.

        One that does not count may be the best, and else says nothing: it was asked for by hand, not due.
        """
        if math.isfinite(loss) and (self.loss is None or loss < self.loss):
            return replace(self, loss=loss, step=step, num_worse=0)
        return replace(self, num_worse=self.num_worse + counts)

    def to_json(self) -> dict[str, Any]:
        """Return the best as JSON-safe data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the best of a backup."""
        return cls(**data)
