"""SGD that averages its weights in place of a schedule (schedule-free)."""

from __future__ import annotations

from typing import Any, Literal

from modules.optim.spec import PLAIN_RATES, OptimizerSettings, OptimizerSpec, always, per_weight, scheduled_rate
from modules.optim.terms.general import Foreach, WeightDecay
from modules.optim.terms.kin import AveragePower, PositiveMomentum, RatePower
from modules.system.package import Package


class ScheduleFreeSgd(OptimizerSettings):
    """SGD that averages its weights in place of a schedule (schedule-free)."""

    name: Literal["schedule_free_sgd"] = "schedule_free_sgd"
    momentum: PositiveMomentum = 0.9
    weight_decay: WeightDecay = 0.01
    r: AveragePower = 0.0
    weight_lr_power: RatePower = 2.0
    foreach: Foreach = False


def _arguments(settings: ScheduleFreeSgd) -> dict[str, Any]:
    return {
        "momentum": settings.momentum,
        "weight_decay": settings.weight_decay,
        "r": settings.r,
        "weight_lr_power": settings.weight_lr_power,
        "foreach": settings.foreach,
    }


SPEC = OptimizerSpec(
    settings=ScheduleFreeSgd,
    label="Schedule-free SGD",
    factory="schedulefree:SGDScheduleFree",
    arguments=_arguments,
    rates=PLAIN_RATES,
    state_bytes=per_weight(4.0),
    packages=(Package("schedulefree"),),
    steps_at_once=True,
    group_state=("k", "weight_sum", "lr_max"),
    has_evaluation_mode=always,
    effective_rate=scheduled_rate,
)
