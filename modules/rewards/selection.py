"""Which reward models a run trains on, and which it only watches. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from modules.rewards.settings import Scorer


@dataclass(frozen=True, slots=True)
class ScorersInUse:
    """The reward models of a run: those that are trained on, and the one held out, which is only watched."""

    trained: tuple[Scorer, ...]
    held_out: Scorer | None

    @property
    def all(self) -> tuple[Scorer, ...]:
        """Every reward model that is loaded."""
        return self.trained if self.held_out is None else (*self.trained, self.held_out)


def scorers_in_use(scorers: Sequence[Scorer], hold_out: str) -> ScorersInUse:
    """Return the reward models of a list that a run uses where the kind `hold_out` (or "none") is held out."""
    return ScorersInUse(trained_scorers(scorers, hold_out), held_out_scorer(scorers, hold_out))


def trained_scorers(scorers: Sequence[Scorer], hold_out: str) -> tuple[Scorer, ...]:
    """Return the reward models that are trained on: switched on, of some weight, and not of the kind held out."""
    return tuple(s for s in scorers if s.enabled and s.weight > 0 and s.kind != hold_out)


def held_out_scorer(scorers: Sequence[Scorer], hold_out: str) -> Scorer | None:
    """Return the reward model that is only watched: the first of its kind in the list, else one of usual settings.

    None where none is held out.
    """
    if hold_out == "none":
        return None
    return next((s for s in scorers if s.kind == hold_out), Scorer(kind=hold_out))
