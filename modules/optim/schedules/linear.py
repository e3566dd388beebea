"""Falls in a straight line to the min factor."""

from __future__ import annotations

from typing import Literal

from modules.optim.schedule_spec import MinFactor, Position, ScheduleSettings, ScheduleSpec


class Linear(ScheduleSettings):
    """Falls in a straight line to the min factor."""

    name: Literal["linear"] = "linear"
    min_factor: MinFactor = 0.0


def _curve(settings: Linear, at: Position) -> float:
    return 1.0 - at.progress


LINEAR = ScheduleSpec(settings=Linear, label="Linear", curve=_curve)
