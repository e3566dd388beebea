"""AdaGrad that estimates its learning rate (D-Adaptation)."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from modules.optim.spec import FINDS_ITS_RATE, OptimizerSettings, OptimizerSpec, always, distance_times_rate, per_weight
from modules.optim.terms.general import FirstDistance, GrowthRate, Momentum, WeightDecay, advanced
from modules.optim.terms.removed import LOG_EVERY
from modules.system.package import Package


class DAdaptAdaGrad(OptimizerSettings):
    """AdaGrad that estimates its learning rate (D-Adaptation)."""

    name: Literal["dadapt_ada_grad"] = "dadapt_ada_grad"
    momentum: Momentum = 0.0
    weight_decay: WeightDecay = 0.0
    eps: Annotated[
        float, Ge(0), Le(1), advanced("Epsilon", "Keeps the division by small gradients finite; 0 turns it off.")
    ] = 0.0
    d0: FirstDistance = 1e-6
    growth_rate: GrowthRate = None


def _arguments(settings: DAdaptAdaGrad) -> dict[str, Any]:
    return {
        "momentum": settings.momentum,
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
        "growth_rate": math.inf if settings.growth_rate is None else settings.growth_rate,
        "d0": settings.d0,
    }


SPEC = OptimizerSpec(
    settings=DAdaptAdaGrad,
    label="D-Adapt AdaGrad",
    factory="modules.optim.classes.d_adaptation:ada_grad",
    arguments=_arguments,
    rates=FINDS_ITS_RATE,
    state_bytes=per_weight(12.0),
    waits_per_weight=always,
    packages=(Package("dadaptation"),),
    steps_at_once=True,
    group_state=("d", "k", "gsq_weighted", "sksq_weighted", "skl1"),
    has_one_rate=True,
    effective_rate=distance_times_rate,
    removed={"log_every": LOG_EVERY},
)
