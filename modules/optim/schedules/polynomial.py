"""Falls as a power of what is left of the run."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from annotated_types import Gt, Le

from modules.optim.schedule_spec import MinFactor, Position, ScheduleSettings, ScheduleSpec
from modules.settings.field import Setting


class Polynomial(ScheduleSettings):
    """Falls as a power of what is left of the run."""

    name: Literal["polynomial"] = "polynomial"
    min_factor: MinFactor = 0.0
    power: Annotated[
        float,
        Gt(0),
        Le(100),
        Setting("Power", "1 is a straight line; with a higher power the learning rate falls earlier."),
    ] = 1.0


def _curve(settings: Polynomial, at: Position) -> float:
    return math.pow(1.0 - at.progress, settings.power)


POLYNOMIAL = ScheduleSpec(settings=Polynomial, label="Polynomial", curve=_curve)
