"""AdamW that averages its weights in place of a schedule (schedule-free)."""

from __future__ import annotations

from typing import Any, Literal

from modules.optim.spec import OptimizerSettings, OptimizerSpec, always, per_weight, scheduled_rate
from modules.optim.terms.general import Beta2, Epsilon, Foreach, WeightDecay
from modules.optim.terms.kin import AveragePower, PositiveBeta1, RatePower
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


def _arguments(settings: ScheduleFreeAdamW) -> dict[str, Any]:
    return {
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
        "r": settings.r,
        "weight_lr_power": settings.weight_lr_power,
        "foreach": settings.foreach,
    }


SPEC = OptimizerSpec(
    settings=ScheduleFreeAdamW,
    label="Schedule-free AdamW",
    factory="schedulefree:AdamWScheduleFree",
    arguments=_arguments,
    state_bytes=per_weight(8.0),
    packages=(Package("schedulefree"),),
    steps_at_once=True,
    group_state=("k", "weight_sum", "lr_max"),
    has_evaluation_mode=always,
    effective_rate=scheduled_rate,
)
