"""Adam that estimates its learning rate (D-Adaptation)."""

from __future__ import annotations

import math
from typing import Any, Literal

from modules.optim.spec import FINDS_ITS_RATE, OptimizerSettings, OptimizerSpec, always, distance_times_rate, per_weight
from modules.optim.terms.general import (
    Beta1,
    Beta2,
    BiasCorrection,
    Decouple,
    Epsilon,
    FirstDistance,
    GrowthRate,
    WeightDecay,
)
from modules.optim.terms.removed import LOG_EVERY, SHARDED
from modules.system.package import Package


class DAdaptAdam(OptimizerSettings):
    """Adam that estimates its learning rate (D-Adaptation)."""

    name: Literal["dadapt_adam"] = "dadapt_adam"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    decouple: Decouple = False
    use_bias_correction: BiasCorrection = False
    d0: FirstDistance = 1e-6
    growth_rate: GrowthRate = None


def _arguments(settings: DAdaptAdam) -> dict[str, Any]:
    return {
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
        "decouple": settings.decouple,
        "use_bias_correction": settings.use_bias_correction,
        "growth_rate": math.inf if settings.growth_rate is None else settings.growth_rate,
        "d0": settings.d0,
    }


SPEC = OptimizerSpec(
    settings=DAdaptAdam,
    label="D-Adapt Adam",
    factory="dadaptation:DAdaptAdam",
    arguments=_arguments,
    rates=FINDS_ITS_RATE,
    state_bytes=per_weight(12.0),
    waits_per_weight=always,
    packages=(Package("dadaptation"),),
    steps_at_once=True,
    group_state=("d", "k", "numerator_weighted"),
    has_one_rate=True,
    effective_rate=distance_times_rate,
    removed={"log_every": LOG_EVERY, "fsdp_in_use": SHARDED},
)
