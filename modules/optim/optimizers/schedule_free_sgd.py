"""SGD that averages its weights in place of a schedule (schedule-free)."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import PLAIN_RATES, OptimizerSettings, OptimizerSpec
from modules.optim.terms.general import Foreach, Momentum, WeightDecay
from modules.optim.terms.kin import AveragePower, RatePower


class ScheduleFreeSgd(OptimizerSettings):
    """SGD that averages its weights in place of a schedule (schedule-free)."""

    name: Literal["schedule_free_sgd"] = "schedule_free_sgd"
    momentum: Momentum = 0.0
    weight_decay: WeightDecay = 0.01
    r: AveragePower = 0.0
    weight_lr_power: RatePower = 2.0
    foreach: Foreach = False


SPEC = OptimizerSpec(
    settings=ScheduleFreeSgd,
    label="Schedule-free SGD",
    rates=PLAIN_RATES,
    has_evaluation_mode=True,
)
