"""Which reward models of a list a run uses: the trained ones, and the held-out one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from modules.rewards.settings import Scorer


@dataclass(frozen=True, slots=True)
class ScorersInUse:
    """The reward models of a run: the ones that are trained on, and the held-out one, which is only logged."""

    trained: tuple[Scorer, ...]
    held_out: Scorer | None

    @property
    def all(self) -> tuple[Scorer, ...]:
        """Every reward model that is loaded."""
        return self.trained if self.held_out is None else (*self.trained, self.held_out)


def scorers_in_use(scorers: Sequence[Scorer], held_out_reward: str) -> ScorersInUse:
    """Return the reward models that a run uses, where the kind `held_out_reward` (or "none") is held out."""
    return ScorersInUse(trained_scorers(scorers, held_out_reward), held_out_scorer(scorers, held_out_reward))


def trained_scorers(scorers: Sequence[Scorer], held_out_reward: str) -> tuple[Scorer, ...]:
    """Return the reward models that are trained on: enabled, with a weight above 0, and not held out."""
    return tuple(s for s in scorers if s.enabled and s.weight > 0 and s.kind != held_out_reward)


def held_out_scorer(scorers: Sequence[Scorer], held_out_reward: str) -> Scorer | None:
    """Return the held-out reward model: the first of its kind in the list, else one with default settings.

    None where none is held out.
    """
    if held_out_reward == "none":
        return None
    return next((s for s in scorers if s.kind == held_out_reward), Scorer(kind=held_out_reward))
