"""Schedule-free optimizers (Defazio et al. 2024): an average of the weights stands in for a falling rate."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.config.sections.optimizers.terms import (
    Beta1,
    Beta2,
    Epsilon,
    Foreach,
    Momentum,
    WeightDecay,
    advanced,
)
from modules.settings.field import Section

AveragePower = Annotated[
    float,
    Ge(0),
    Le(100),
    advanced("Weigh later steps (r)", "How much more later steps count in the average; 0 counts all alike."),
]
RatePower = Annotated[
    float,
    Ge(0),
    Le(100),
    advanced("Weigh by the rate", "The power of the learning rate that a step counts with during the warm-up."),
]


class ScheduleFreeAdamW(Section):
    """AdamW without a schedule."""

    name: Literal["schedule_free_adamw"] = "schedule_free_adamw"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.01
    r: AveragePower = 0.0
    weight_lr_power: RatePower = 2.0
    foreach: Foreach = False


class ScheduleFreeSgd(Section):
    """Gradient descent without a schedule."""

    name: Literal["schedule_free_sgd"] = "schedule_free_sgd"
    momentum: Momentum = 0.0
    weight_decay: WeightDecay = 0.01
    r: AveragePower = 0.0
    weight_lr_power: RatePower = 2.0
    foreach: Foreach = False
