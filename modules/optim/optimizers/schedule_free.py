"""The schedule-free optimizers (Defazio et al. 2024)."""

from __future__ import annotations

from typing import Any, Literal

from modules.optim.spec import (
    PLAIN_RATES,
    OptimizerSettings,
    OptimizerSpec,
    always,
    averages,
    scheduled_rate,
)
from modules.optim.terms.general import Beta2, Epsilon, Foreach, WeightDecay
from modules.optim.terms.kin import AveragePower, PositiveBeta1, PositiveMomentum, RatePower
from modules.system.package import Package


class ScheduleFreeAdamW(OptimizerSettings):
    """AdamW that averages its weights in place of a schedule (schedule-free)."""

    name: Literal["schedule_free_adamw"] = "schedule_free_adamw"
    beta1: PositiveBeta1 = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.01
    r: AveragePower = 0.0
    weight_lr_power: RatePower = 2.0
    foreach: Foreach = False


class ScheduleFreeSgd(OptimizerSettings):
    """SGD that averages its weights in place of a schedule (schedule-free)."""

    name: Literal["schedule_free_sgd"] = "schedule_free_sgd"
    momentum: PositiveMomentum = 0.9
    weight_decay: WeightDecay = 0.01
    r: AveragePower = 0.0
    weight_lr_power: RatePower = 2.0
    foreach: Foreach = False


def _spec(settings: type[Any], label: str, factory: str, **facts: Any) -> OptimizerSpec[Any]:
    return OptimizerSpec(
        settings=settings,
        label=label,
        factory=factory,
        packages=(Package("schedulefree"),),
        steps_at_once=True,
        group_state=("k", "weight_sum", "lr_max"),
        has_evaluation_mode=always,
        effective_rate=scheduled_rate,
        **facts,
    )


SCHEDULE_FREE_ADAMW = _spec(ScheduleFreeAdamW, "Schedule-free AdamW", "schedulefree:AdamWScheduleFree")

SCHEDULE_FREE_SGD = _spec(
    ScheduleFreeSgd, "Schedule-free SGD", "schedulefree:SGDScheduleFree", rates=PLAIN_RATES, state_bytes=averages(1)
)
