"""The learning rate as a function of the step: there is no state to save or restore. Torch-free."""

from __future__ import annotations

import math

from modules.optim.schedule_registry import SCHEDULES
from modules.optim.schedule_spec import ScheduleSettings


def warmup_length(settings: ScheduleSettings, total_steps: int) -> int:
    """Return the number of warm-up steps: the given number, else the given fraction of the run."""
    return settings.warmup_steps or math.ceil(settings.warmup_share * total_steps)


def learning_rate_factor(settings: ScheduleSettings, *, step: int, total_steps: int) -> float:
    """Return the factor on the learning rate at a step (counted from 0), in [0, 1].

    The warm-up rises linearly and its first step is not zero. The rest of the run follows the schedule's curve, scaled
    to lie between 1 and `min_factor`. Raises ValueError for an unsupported schedule, which preflight rejects before a
    run.
    """
    warmup = warmup_length(settings, total_steps)
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    curve = SCHEDULES[settings.name].curve
    if curve is None:
        raise ValueError(f"the schedule {settings.name} is not supported")
    lowest: float = getattr(settings, "min_factor", 0.0)
    return lowest + (1.0 - lowest) * curve(settings, progress)
