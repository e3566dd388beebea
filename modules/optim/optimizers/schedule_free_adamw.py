"""AdamW that averages its weights in place of a schedule (schedule-free)."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import OptimizerSettings, OptimizerSpec
from modules.optim.terms.general import Beta1, Beta2, Epsilon, Foreach, WeightDecay
from modules.optim.terms.kin import AveragePower, RatePower


class ScheduleFreeAdamW(OptimizerSettings):
    """AdamW that averages its weights in place of a schedule (schedule-free)."""

    name: Literal["schedule_free_adamw"] = "schedule_free_adamw"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.01
    r: AveragePower = 0.0
    weight_lr_power: RatePower = 2.0
    foreach: Foreach = False


SPEC = OptimizerSpec(
    settings=ScheduleFreeAdamW,
    label="Schedule-free AdamW",
    has_evaluation_mode=True,
)
