"""Prodigy (Mishchenko and Defazio 2023), which estimates its learning rate."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from modules.optim.spec import FINDS_ITS_RATE, OptimizerSettings, OptimizerSpec, Shape, always, distance_times_rate
from modules.optim.terms.general import (
    Beta1,
    Beta2,
    BiasCorrection,
    Decouple,
    DistanceFactor,
    Epsilon,
    FirstDistance,
    GrowthRate,
    SliceEvery,
    SlowBeta,
    WeightDecay,
    advanced,
)
from modules.optim.terms.removed import SHARDED
from modules.system.package import Package


class Prodigy(OptimizerSettings):
    """Prodigy (Mishchenko and Defazio 2023): estimates its learning rate."""

    name: Literal["prodigy"] = "prodigy"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    beta3: SlowBeta = None
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    decouple: Decouple = True
    use_bias_correction: BiasCorrection = False
    safeguard_warmup: Annotated[
        bool, advanced("Safeguard warmup", "Leaves the small learning rates of the warm-up out of the estimate.")
    ] = False
    d0: FirstDistance = 1e-6
    d_coef: DistanceFactor = 1.0
    growth_rate: GrowthRate = None
    slice_p: SliceEvery = 11


def _state_bytes(settings: Prodigy, shape: Shape) -> float:
    """Adam's two averages, and for every `slice_p`-th weight its initial value and its weighted sum of gradients."""
    size = math.prod(shape)
    means = 2 if settings.beta1 > 0 else 1
    return 4.0 * (means * size + 2 * math.ceil(size / settings.slice_p))


PRODIGY = OptimizerSpec(
    settings=Prodigy,
    label="Prodigy",
    factory="prodigyopt:Prodigy",
    state_bytes=_state_bytes,
    waits_per_weight=always,
    rates=FINDS_ITS_RATE,
    packages=(Package("prodigyopt"),),
    steps_at_once=True,
    group_state=("d", "d_max", "d_numerator", "k"),
    has_one_rate=True,
    removed={"fsdp_in_use": SHARDED},
    effective_rate=distance_times_rate,
)
