"""The learning rate schedules, and the learning rate as a function of the step: there is no state to save or restore.

The schedules are in the order the window lists them; the first is the default. Each name has the module in `schedules/`
with its record: the one named "cosine" is `COSINE`. A module is imported when one of its records is read first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from modules.optim.schedule_spec import Position, ScheduleSettings, ScheduleSpec
from modules.settings.lazy_variants import LazyRecords
from modules.system.errors import DarkroomError

SCHEDULES: Mapping[str, ScheduleSpec[Any]] = LazyRecords(
    "modules.optim.schedules",
    {
        "constant": "constant",
        "linear": "curves",
        "cosine": "usual",
        "cosine_with_restarts": "usual",
        "cosine_with_hard_restarts": "usual",
        "rex": "curves",
        "polynomial": "curves",
        "inverse_sqrt": "curves",
        "wsd": "curves",
        "points": "points",
        "expression": "expression",
        "adafactor": "usual",
        "custom": "custom",
    },
)
DEFAULT_SCHEDULE = SCHEDULES[next(iter(SCHEDULES))]


def formula_schedule() -> ScheduleSpec[Any]:
    """Return the schedule whose curve is a formula, in its field `expression`: for measuring a sweep."""
    return SCHEDULES["expression"]


_MAX_TRIED = 200


def warmup_length(settings: ScheduleSettings, total_steps: int) -> int:
    """Return the number of warm-up steps: the given number, else the given fraction of the run."""
    return settings.warmup_steps or math.ceil(settings.warmup_share * total_steps)


def learning_rate_factor(
    settings: ScheduleSettings, *, step: int, total_steps: int, epochs: int = 1, learning_rate: float = 1.0
) -> float:
    """Return the factor on the learning rate at a step (counted from 0): at least 0, and rarely above 1.

    The warm-up rises linearly and its first step is not zero. The rest of the run follows the schedule's curve, scaled
    to lie between 1 and `min_factor`. `learning_rate` is the one set for the run: some curves are made of rates instead
    of factors. Raises DarkroomError where the schedule has no value.
    """
    warmup = warmup_length(settings, total_steps)
    if step < warmup:
        return (step + 1) / warmup
    spec = SCHEDULES[settings.name]
    try:
        value = spec.curve(settings, Position(step, total_steps, warmup, epochs, learning_rate))
    except (ValueError, ArithmeticError) as error:
        raise DarkroomError(
            f"The schedule {spec.label} has no learning rate at step {step:,} of {total_steps:,}: {error}.",
            advice="Correct its settings, or choose another schedule.",
        ) from error
    lowest: float = getattr(settings, "min_factor", 0.0)
    return max(0.0, lowest + (1.0 - lowest) * value)


def factors_over_run(
    factor: Callable[[int], float], total_steps: int, *, num_points: int = _MAX_TRIED
) -> list[tuple[int, float]]:
    """Return steps (counted from 0) of a run, with the first and the last, and `factor(step)` of each."""
    last = max(0, total_steps - 1)
    steps = sorted({round(last * number / (num_points - 1)) for number in range(num_points)})
    return [(step, factor(step)) for step in steps]
