"""Learning rate schedules as functions of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math

from modules.config.sections.schedule import Constant, Cosine, Linear, ScheduleSettings


def warmup_length(settings: ScheduleSettings, total_steps: int) -> int:
    """Return the number of warm-up steps: the given number, else the given share of the run."""
    return settings.warmup_steps or math.ceil(settings.warmup_share * total_steps)


def learning_rate_factor(settings: ScheduleSettings, *, step: int, total_steps: int) -> float:
    """Return the share of the learning rate that a step (counted from 0) uses, in [0, 1].

    The warm-up rises linearly and its first step is not zero. After it the rest of the run goes from 1 to
    `min_factor`: linearly, or along half a cosine (Loshchilov and Hutter 2017, eq. 5, one cycle).
    """
    warmup = warmup_length(settings, total_steps)
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    match settings:
        case Constant():
            return 1.0
        case Linear(min_factor=lowest):
            return 1.0 - (1.0 - lowest) * progress
        case Cosine(min_factor=lowest):
            return lowest + (1.0 - lowest) * 0.5 * (1.0 + math.cos(math.pi * progress))
