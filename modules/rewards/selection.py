"""Which reward models a run follows, and which it only watches. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence

from modules.config.sections.reward import Scorer


def trained_scorers(scorers: Sequence[Scorer], held_out_reward: str) -> tuple[Scorer, ...]:
    """Return the reward models whose scores are followed: switched on, of some weight, and not of the kind held out."""
    return tuple(s for s in scorers if s.enabled and s.weight > 0 and s.kind != held_out_reward)


def held_out_scorer(scorers: Sequence[Scorer], held_out_reward: str) -> Scorer | None:
    """Return the reward model that is only watched: the first of its kind in the list, else one of usual settings.

    None where none is held out.
    """
    if held_out_reward == "none":
        return None
    return next((s for s in scorers if s.kind == held_out_reward), Scorer(kind=held_out_reward))
