"""The lowest of what a run measures of itself (its validation loss, a reward's negative), and how long ago that was."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from trainer.events import Event, WarningRaised


@dataclass(frozen=True, slots=True)
class Best:
    """The best loss, after which step it was measured, and how many measurements in a row were not better since.

    `measured_on` stands for the images and noise levels: losses on others cannot be compared.
    """

    measured_on: str
    loss: float | None = None
    step: int | None = None
    num_bad_evaluations: int = 0

    def after(self, loss: float, step: int, *, counts: bool) -> Self:
        """Return the best after one more measurement; a loss that is no number is not better than any.

        One that does not count may be the best, and else says nothing: it was asked for by hand, not due.
        """
        if math.isfinite(loss) and (self.loss is None or loss < self.loss):
            return replace(self, loss=loss, step=step, num_bad_evaluations=0)
        return replace(self, num_bad_evaluations=self.num_bad_evaluations + counts)

    def to_json(self) -> dict[str, Any]:
        """Return the best as JSON-safe data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the best of a backup."""
        return cls(**data)


class Search:
    """The search for the best of a run, which a backup carries on: what it is, and whether a measurement is owed.

    Owed is one that was due after a step and that a stop has cut short: the run that goes on makes up for it.
    """

    def __init__(
        self, measured_on: str, *, early_stopping_patience: int, changed: str, emit: Callable[[Event], None]
    ) -> None:
        """`early_stopping_patience` measurements in a row that are not better are enough, 0 never; `changed` is the
        warning where those of a backup were `measured_on` something else.
        """
        self.best = Best(measured_on)
        self.is_owed = False
        self._patience = early_stopping_patience
        self._changed = changed
        self._emit = emit

    @property
    def should_stop(self) -> bool:
        """Whether so many measurements in a row were not better that the run is to end."""
        return 0 < self._patience <= self.best.num_bad_evaluations

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, JSON-safe: the best, and whether a measurement is owed."""
        return {"best": self.best.to_json(), "is_owed": self.is_owed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state; no best that was measured on something else, which cannot be compared."""
        if not state:  # a backup from before there was a best
            return
        self.is_owed = bool(state["is_owed"])
        best = Best.from_json(state["best"])
        if best.measured_on == self.best.measured_on:
            self.best = best
        elif best.step is not None:
            self._emit(WarningRaised(f"{self._changed}, so the search for the best begins again."))
