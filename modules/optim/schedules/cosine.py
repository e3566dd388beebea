"""Falls along half a cosine to the min factor (Loshchilov and Hutter 2017, without restarts)."""

from __future__ import annotations

import math
from typing import Literal

from modules.optim.schedule_spec import MinFactor, Position, ScheduleSettings, ScheduleSpec


class Cosine(ScheduleSettings):
    """Falls along half a cosine to the min factor (Loshchilov and Hutter 2017, without restarts)."""

    name: Literal["cosine"] = "cosine"
    min_factor: MinFactor = 0.0


def half_cosine(turn: float) -> float:
    """Return a cosine from 1 (at 0) down to 0 (at 1) and back (at 2): Loshchilov and Hutter 2017, eq. 5, one cycle."""
    return 0.5 * (1.0 + math.cos(math.pi * turn))


def _curve(settings: Cosine, at: Position) -> float:
    return half_cosine(at.progress)


COSINE = ScheduleSpec(settings=Cosine, label="Cosine", curve=_curve)
