"""Which reward models a run follows, and which it only watches. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence

from modules.config.sections.reward import Scorer


def trained_scorers(scorers: Sequence[Scorer], hold_out: str) -> tuple[Scorer, ...]:
    """Return the reward models whose scores are followed: switched on, of some weight, and not of the kind held out."""
    return tuple(s for s in scorers if s.enabled and s.weight > 0 and s.kind != hold_out)


def held_out_scorer(scorers: Sequence[Scorer], hold_out: str) -> Scorer | None:
    """Return the reward model that is only watched: the first of its kind in the list, else one of usual settings.

    None where none is held out.
    """
    if hold_out == "none":
        return None
    return next((s for s in scorers if s.kind == hold_out), Scorer(kind=hold_out))
