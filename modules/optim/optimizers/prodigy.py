"""Prodigy (Mishchenko and Defazio 2023): finds its learning rate."""

from __future__ import annotations

from typing import Annotated, Literal

from modules.optim.spec import FINDS_ITS_RATE, OptimizerSettings, OptimizerSpec, per_weight
from modules.optim.terms.general import (
    Beta1,
    Beta2,
    BiasCorrection,
    Decouple,
    DistanceFactor,
    Epsilon,
    FirstDistance,
    GrowthRate,
    Sharded,
    SliceEvery,
    SlowBeta,
    WeightDecay,
    advanced,
)


class Prodigy(OptimizerSettings):
    """Prodigy (Mishchenko and Defazio 2023): finds its learning rate."""

    name: Literal["prodigy"] = "prodigy"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    beta3: SlowBeta = None
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    decouple: Decouple = True
    use_bias_correction: BiasCorrection = False
    safeguard_warmup: Annotated[
        bool, advanced("Guard the warm-up", "The small rates of a warm-up do not count in the search.")
    ] = False
    d0: FirstDistance = 1e-6
    d_coef: DistanceFactor = 1.0
    growth_rate: GrowthRate = None
    fsdp_in_use: Sharded = False
    slice_p: SliceEvery = 11


SPEC = OptimizerSpec(
    settings=Prodigy,
    label="Prodigy",
    rates=FINDS_ITS_RATE,
    state_bytes=per_weight(12.0),
    has_one_rate=True,
)
