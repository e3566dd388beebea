"""Falls with the square root of the step (Vaswani et al. 2017, section 5.3), whatever the length of the run."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.optim.schedule_spec import MinFactor, Position, ScheduleSettings, ScheduleSpec
from modules.settings.field import Setting

_DEFAULT_TIMESCALE = 10_000


class InverseSqrt(ScheduleSettings):
    """Falls with the square root of the step (Vaswani et al. 2017), whatever the length of the run."""

    name: Literal["inverse_sqrt"] = "inverse_sqrt"
    min_factor: MinFactor = 0.0
    timescale_steps: Annotated[
        int,
        Ge(0),
        Le(10_000_000),
        Setting(
            "Timescale",
            "After three times this many steps the learning rate is half. 0: the length of the warm-up, or 10,000 "
            "without one.",
            unit="steps",
        ),
    ] = 0


def _curve(settings: InverseSqrt, at: Position) -> float:
    timescale = settings.timescale_steps or at.warmup_steps or _DEFAULT_TIMESCALE
    return 1.0 / math.sqrt(1.0 + (at.step - at.warmup_steps) / timescale)


INVERSE_SQRT = ScheduleSpec(settings=InverseSqrt, label="Inverse square root", curve=_curve)
