"""`Every`: how often something happens, a number with its unit. The only code that decides when something is due."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge
from pydantic import BaseModel, ConfigDict

Unit = Literal["epoch", "step", "second", "minute", "hour", "never"]

_SECONDS_PER_UNIT = {"second": 1.0, "minute": 60.0, "hour": 3600.0}


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in a run: optimizer steps and epochs completed, and seconds spent training."""

    step: int
    epoch: int
    seconds: float


class Every(BaseModel):
    """A period or a span: 10 steps, 1 epoch, 30 minutes, never. A step is an optimizer update."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    n: Annotated[float, Ge(0)] = 1
    unit: Unit = "never"

    @property
    def is_never(self) -> bool:
        """Whether it never happens: the unit is "never", or the number is zero."""
        return self.unit == "never" or self.n <= 0

    @property
    def is_of_time(self) -> bool:
        """Whether it is a number of seconds, minutes or hours."""
        return not self.is_never and self.unit in _SECONDS_PER_UNIT

    def is_due(self, before: Moment, now: Moment, *, skip_first: Every | None = None) -> bool:
        """Return whether a multiple of the period lies in (before, now]; depends on these two moments only.

        It is never due before `skip_first`, a span from the start of the run, has passed.
        Nothing is remembered between calls, so a resumed run does at step 40 the same as an uninterrupted one.
        """
        has_begun = skip_first is None or skip_first.is_never or skip_first.is_over(now)
        return has_begun and self.times(now) > self.times(before)

    def times(self, moment: Moment) -> int:
        """Return how many multiples of the period have passed by a moment, the start not counted; 0 for never."""
        if self.is_never:
            return 0
        return int(min(self._position(moment) / self.n + 1e-9, 1e300))  # a period near zero gives infinity

    def is_over(self, now: Moment) -> bool:
        """Return whether a duration since the start of the run has passed (for "stop training after")."""
        return not self.is_never and self._position(now) >= self.n

    def _position(self, moment: Moment) -> float:
        match self.unit:
            case "step":
                return float(moment.step)
            case "epoch":
                return float(moment.epoch)
            case "never":
                return 0.0
            case unit:
                return moment.seconds / _SECONDS_PER_UNIT[unit]

    def __str__(self) -> str:
        if self.is_never:
            return "never"
        return f"every {self.unit}" if self.n == 1 else f"every {self.span}"

    @property
    def span(self) -> str:
        """It as a length of time: 1 epoch, 30 minutes."""
        number = f"{int(self.n):,}" if self.n == int(self.n) else f"{self.n:g}"
        return "never" if self.is_never else f"{number} {self.unit}{'' if number == '1' else 's'}"
