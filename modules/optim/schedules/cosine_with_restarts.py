"""Falls and rises along full periods of a cosine."""

from __future__ import annotations

from typing import Literal

from modules.optim.schedule_spec import Cycles, MinFactor, Position, ScheduleSettings, ScheduleSpec
from modules.optim.schedules.cosine import half_cosine


class CosineWithRestarts(ScheduleSettings):
    """Falls and rises along full periods of a cosine."""

    name: Literal["cosine_with_restarts"] = "cosine_with_restarts"
    min_factor: MinFactor = 0.0
    cycles: Cycles = 1.0


def _curve(settings: CosineWithRestarts, at: Position) -> float:
    # A full period falls and rises again, without a jump.
    return half_cosine(2.0 * settings.cycles * at.progress)


COSINE_WITH_RESTARTS = ScheduleSpec(settings=CosineWithRestarts, label="Cosine with restarts", curve=_curve)
