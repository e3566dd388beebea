"""The same learning rate for the whole run."""

from __future__ import annotations

from typing import Literal

from modules.optim.schedule_spec import Position, ScheduleSettings, ScheduleSpec


class Constant(ScheduleSettings):
    """The same learning rate for the whole run."""

    name: Literal["constant"] = "constant"


def _curve(settings: Constant, at: Position) -> float:
    return 1.0


CONSTANT = ScheduleSpec(settings=Constant, label="Constant", curve=_curve)
