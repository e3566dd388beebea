"""The best evaluation of a run (lowest validation loss, or lowest negated reward), and early stopping by it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from trainer.events import Event, WarningRaised


@dataclass(frozen=True, slots=True)
class Best:
    """The best loss, the step at which it was measured, and the number of bad evaluations in a row since.

    `measured_on` identifies the images and timesteps: losses on others cannot be compared.
    """

    measured_on: str
    loss: float | None = None
    step: int | None = None
    num_bad_evaluations: int = 0

    def after(self, loss: float, step: int, *, counts: bool) -> Self:
        """Return the best after one more evaluation; a loss that is not finite is never better.

        An evaluation that does not count (requested by the user, not due) can be the best, but never a bad one.
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
    """The best evaluation of a run and whether an evaluation is owed; kept in backups.

    An evaluation is owed if it was due after a step and a stop interrupted it: the resumed run repeats it.
    """

    def __init__(
        self, measured_on: str, *, early_stopping_patience: int, changed: str, emit: Callable[[Event], None]
    ) -> None:
        """`early_stopping_patience` is the number of bad evaluations in a row that ends the run; 0 disables it.

        `changed` is the warning if the evaluations of a backup were `measured_on` something else.
        """
        self.best = Best(measured_on)
        self.is_owed = False
        self._patience = early_stopping_patience
        self._changed = changed
        self._emit = emit

    @property
    def should_stop(self) -> bool:
        """Whether early stopping should end the run."""
        return 0 < self._patience <= self.best.num_bad_evaluations

    def state_dict(self) -> dict[str, Any]:
        """Return the JSON-safe state for a resumed run: the best, and whether an evaluation is owed."""
        return {"best": self.best.to_json(), "is_owed": self.is_owed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state; a best that was measured on something else is dropped, because it cannot be compared."""
        if not state:  # a backup of an older version
            return
        self.is_owed = bool(state["is_owed"])
        best = Best.from_json(state["best"])
        if best.measured_on == self.best.measured_on:
            self.best = best
        elif best.step is not None:
            self._emit(WarningRaised(f"{self._changed}. The search for the best model starts again."))
