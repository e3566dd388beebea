"""The usual schedules with a curve: cosines (Loshchilov and Hutter 2017), and the rate that Adafactor chooses itself.

The others are in `curves.py`, whose classes the window does not build at a start with one of these.
"""

import math
from typing import Literal

from modules.optim.schedule_spec import Cycles, MinFactor, Position, ScheduleSettings, ScheduleSpec


class AdafactorRate(ScheduleSettings):
    """The learning rate that Adafactor chooses itself, with its own warm-up; the one set here has no effect."""

    name: Literal["adafactor"] = "adafactor"


def _adafactor_curve(settings: AdafactorRate, at: Position) -> float:
    return 1.0


ADAFACTOR = ScheduleSpec(settings=AdafactorRate, label="Adafactor", curve=_adafactor_curve, is_of_optimizer=True)


class Cosine(ScheduleSettings):
    """Falls along half a cosine to the min factor (Loshchilov and Hutter 2017, without restarts)."""

    name: Literal["cosine"] = "cosine"
    min_factor: MinFactor = 0.0


def half_cosine(turn: float) -> float:
    """Return a cosine from 1 (at 0) down to 0 (at 1) and back (at 2): Loshchilov and Hutter 2017, eq. 5, one cycle."""
    return 0.5 * (1.0 + math.cos(math.pi * turn))


def _cosine_curve(settings: Cosine, at: Position) -> float:
    return half_cosine(at.progress)


COSINE = ScheduleSpec(settings=Cosine, label="Cosine", curve=_cosine_curve)


class CosineWithRestarts(ScheduleSettings):
    """Falls and rises along full periods of a cosine."""

    name: Literal["cosine_with_restarts"] = "cosine_with_restarts"
    min_factor: MinFactor = 0.0
    cycles: Cycles = 1.0


def _cosine_with_restarts_curve(settings: CosineWithRestarts, at: Position) -> float:
    # A full period falls and rises again, without a jump.
    return half_cosine(2.0 * settings.cycles * at.progress)


COSINE_WITH_RESTARTS = ScheduleSpec(
    settings=CosineWithRestarts, label="Cosine with restarts", curve=_cosine_with_restarts_curve
)


class CosineWithHardRestarts(ScheduleSettings):
    """Falls along half a cosine and jumps back to the full learning rate (Loshchilov and Hutter 2017)."""

    name: Literal["cosine_with_hard_restarts"] = "cosine_with_hard_restarts"
    min_factor: MinFactor = 0.0
    cycles: Cycles = 1.0


def _cosine_with_hard_restarts_curve(settings: CosineWithHardRestarts, at: Position) -> float:
    cycles = settings.cycles
    # The run ends at the end of a cycle, not with the next restart.
    return 0.0 if at.progress >= 1.0 and cycles == int(cycles) else half_cosine(cycles * at.progress % 1.0)


COSINE_WITH_HARD_RESTARTS = ScheduleSpec(
    settings=CosineWithHardRestarts, label="Cosine with hard restarts", curve=_cosine_with_hard_restarts_curve
)
