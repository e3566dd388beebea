"""Adam that estimates its learning rate (D-Adaptation)."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import FINDS_ITS_RATE, OptimizerSettings, OptimizerSpec, per_weight
from modules.optim.terms.general import (
    Beta1,
    Beta2,
    BiasCorrection,
    Decouple,
    Epsilon,
    FirstDistance,
    GrowthRate,
    LogEvery,
    Sharded,
    WeightDecay,
)


class DAdaptAdam(OptimizerSettings):
    """Adam that estimates its learning rate (D-Adaptation)."""

    name: Literal["dadapt_adam"] = "dadapt_adam"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    log_every: LogEvery = 0
    decouple: Decouple = False
    use_bias_correction: BiasCorrection = False
    d0: FirstDistance = 1e-6
    growth_rate: GrowthRate = None
    fsdp_in_use: Sharded = False


SPEC = OptimizerSpec(
    settings=DAdaptAdam,
    label="D-Adapt Adam",
    rates=FINDS_ITS_RATE,
    state_bytes=per_weight(12.0),
    has_one_rate=True,
)
