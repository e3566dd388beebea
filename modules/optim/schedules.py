"""Learning rate schedules as functions of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math

from modules.config.sections.schedule import (
    Constant,
    Cosine,
    CosineWithHardRestarts,
    CosineWithRestarts,
    Linear,
    Rex,
    ScheduleSettings,
)

_REX_BEND = 0.9


def warmup_length(settings: ScheduleSettings, total_steps: int) -> int:
    """Return the number of warm-up steps: the given number, else the given share of the run."""
    return settings.warmup_steps or math.ceil(settings.warmup_share * total_steps)


def learning_rate_factor(settings: ScheduleSettings, *, step: int, total_steps: int) -> float:
    """Return the share of the learning rate that a step (counted from 0) uses, in [0, 1].

    The warm-up rises linearly and its first step is not zero. After it the rest of the run follows the schedule's
    curve, scaled so that it lies between 1 and `min_factor`. Raises ValueError for a schedule that is not there yet,
    which no run that passed its check has.
    """
    warmup = warmup_length(settings, total_steps)
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    if isinstance(settings, Constant):
        return 1.0
    lowest: float = getattr(settings, "min_factor", 0.0)
    return lowest + (1.0 - lowest) * _curve(settings, progress)


def _curve(settings: ScheduleSettings, progress: float) -> float:
    """Return where a schedule is, from 1 down to 0, at a share of the run after its warm-up."""
    match settings:
        case Linear():
            return 1.0 - progress
        case Cosine():  # Loshchilov and Hutter 2017, eq. 5, one cycle
            return _half_cosine(progress)
        case CosineWithRestarts(cycles=cycles):  # there and back again, without a leap
            return _half_cosine(2.0 * cycles * progress)
        case CosineWithHardRestarts(cycles=cycles):  # the end of the run is the end of a fall, not the next leap
            return 0.0 if progress >= 1.0 and cycles == int(cycles) else _half_cosine(cycles * progress % 1.0)
        case Rex():  # Chen et al. 2022, with another bend
            rest = 1.0 - progress
            return rest / (1.0 - _REX_BEND + _REX_BEND * rest)
        case _:
            raise ValueError(f"the schedule {settings.name} is not supported")


def _half_cosine(turn: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * turn))
