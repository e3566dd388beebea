"""Falls along half a cosine and jumps back to the full learning rate (Loshchilov and Hutter 2017)."""

from __future__ import annotations

from typing import Literal

from modules.optim.schedule_spec import Cycles, MinFactor, Position, ScheduleSettings, ScheduleSpec
from modules.optim.schedules.cosine import half_cosine


class CosineWithHardRestarts(ScheduleSettings):
    """Falls along half a cosine and jumps back to the full learning rate (Loshchilov and Hutter 2017)."""

    name: Literal["cosine_with_hard_restarts"] = "cosine_with_hard_restarts"
    min_factor: MinFactor = 0.0
    cycles: Cycles = 1.0


def _curve(settings: CosineWithHardRestarts, at: Position) -> float:
    cycles = settings.cycles
    # The run ends at the end of a cycle, not with the next restart.
    return 0.0 if at.progress >= 1.0 and cycles == int(cycles) else half_cosine(cycles * at.progress % 1.0)


COSINE_WITH_HARD_RESTARTS = ScheduleSpec(
    settings=CosineWithHardRestarts, label="Cosine with hard restarts", curve=_curve
)
