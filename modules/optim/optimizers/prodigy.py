"""Prodigy (Mishchenko and Defazio 2023, arXiv 2306.06101), the authors' implementation: estimates its learning rate.

It estimates the distance d from the initial weights to the solution, from all gradients together, and steps like Adam
with d as the learning rate. d and the sums behind it are the same in all parameter groups.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

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


def _arguments(settings: Prodigy) -> dict[str, Any]:
    return {
        "betas": (settings.beta1, settings.beta2),
        "beta3": settings.beta3,
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
        "decouple": settings.decouple,
        "use_bias_correction": settings.use_bias_correction,
        "safeguard_warmup": settings.safeguard_warmup,
        "d0": settings.d0,
        "d_coef": settings.d_coef,
        "growth_rate": math.inf if settings.growth_rate is None else settings.growth_rate,
        "slice_p": settings.slice_p,
    }


def _state_bytes(settings: Prodigy, shape: Shape) -> float:
    """Adam's two averages, and for every `slice_p`-th weight its initial value and its weighted sum of gradients."""
    size = math.prod(shape)
    means = 2 if settings.beta1 > 0 else 1
    return 4.0 * (means * size + 2 * math.ceil(size / settings.slice_p))


SPEC = OptimizerSpec(
    settings=Prodigy,
    label="Prodigy",
    factory="prodigyopt:Prodigy",
    arguments=_arguments,
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
