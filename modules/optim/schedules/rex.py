"""REX (Chen et al. 2022): stays high for a long time and falls fast at the end."""

from __future__ import annotations

from typing import Literal

from modules.optim.schedule_spec import MinFactor, Position, ScheduleSettings, ScheduleSpec

_BEND = 0.9


class Rex(ScheduleSettings):
    """REX (Chen et al. 2022): stays high for a long time and falls fast at the end."""

    name: Literal["rex"] = "rex"
    min_factor: MinFactor = 0.0


def _curve(settings: Rex, at: Position) -> float:
    """REX of Chen et al. 2022, with another bend."""
    rest = 1.0 - at.progress
    return rest / (1.0 - _BEND + _BEND * rest)


REX = ScheduleSpec(settings=Rex, label="REX", curve=_curve)
