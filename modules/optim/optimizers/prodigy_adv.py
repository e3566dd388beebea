"""Prodigy, advanced: estimates its learning rate; set it to 1."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

from modules.optim.spec import FINDS_ITS_RATE, OptimizerSettings, OptimizerSpec, Shape, always, distance_times_rate
from modules.optim.terms.advanced import (
    ADEMAMIX,
    ADV_OPTM,
    COMPILE,
    SIMPLIFIED_ADEMAMIX,
    Atan2,
    CautiousDecay,
    FactoredState,
    KourkoutasBeta,
    OrthogonalGradient,
    adam_averages_bytes,
    beta2_problems,
    orthogonal,
)
from modules.optim.terms.general import (
    Beta1,
    Beta2,
    DistanceFactor,
    Epsilon,
    FirstDistance,
    GrowthRate,
    LimitDistance,
    SearchSteps,
    SliceEvery,
    SlowBeta,
    WeightDecay,
)
from modules.optim.terms.removed import Removed
from modules.system.problem import Problem

_FUSED = Removed((False,), "the estimate of the learning rate needs all gradients at once.")


class ProdigyAdv(OptimizerSettings):
    """Prodigy, advanced: estimates its learning rate; set it to 1."""

    name: Literal["prodigy_adv"] = "prodigy_adv"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.99
    beta3: SlowBeta = None
    eps: Epsilon = 1e-8
    cautious_wd: CautiousDecay = False
    weight_decay: WeightDecay = 0.0
    nnmf_factor: FactoredState = False
    d0: FirstDistance = 1e-6
    d_coef: DistanceFactor = 1.0
    growth_rate: GrowthRate = None
    slice_p: SliceEvery = 11
    prodigy_steps: SearchSteps = 0
    d_limiter: LimitDistance = False
    use_atan2: Atan2 = False
    orthogonal_gradient: OrthogonalGradient = False
    kourkoutas_beta: KourkoutasBeta = False


def _arguments(settings: ProdigyAdv) -> dict[str, Any]:
    return {
        "betas": (settings.beta1, settings.beta2),
        "beta3": settings.beta3,
        "eps": settings.eps,
        "cautious_wd": settings.cautious_wd,
        "weight_decay": settings.weight_decay,
        "nnmf_factor": settings.nnmf_factor,
        "d0": settings.d0,
        "d_coef": settings.d_coef,
        "growth_rate": math.inf if settings.growth_rate is None else settings.growth_rate,
        "slice_p": settings.slice_p,
        "prodigy_steps": settings.prodigy_steps,
        "d_limiter": settings.d_limiter,
        "use_atan2": settings.use_atan2,
        "orthogonal_gradient": orthogonal(settings.orthogonal_gradient),
        "kourkoutas_beta": settings.kourkoutas_beta,
    }


def _state_bytes(settings: ProdigyAdv, shape: Shape) -> float:
    """Adam's two averages, and for every `slice_p`-th weight its initial value and its weighted sum of gradients."""
    averages = adam_averages_bytes(
        shape, beta1=settings.beta1, factored=settings.nnmf_factor, kourkoutas_beta=settings.kourkoutas_beta
    )
    return averages + 8.0 * math.ceil(math.prod(shape) / settings.slice_p)


def _problems(settings: ProdigyAdv) -> Iterator[Problem]:
    return beta2_problems(settings.kourkoutas_beta, settings.beta2)


SPEC = OptimizerSpec(
    settings=ProdigyAdv,
    label="Prodigy (advanced)",
    factory="modules.optim.classes.advanced:ProdigyAdv",
    arguments=_arguments,
    state_bytes=_state_bytes,
    rates=FINDS_ITS_RATE,
    packages=(ADV_OPTM,),
    reads_memory_in_order=always,
    problems=_problems,
    steps_at_once=True,
    group_state=("d", "d_max", "d_numerator", "k"),
    effective_rate=distance_times_rate,
    removed=COMPILE | ADEMAMIX | SIMPLIFIED_ADEMAMIX | {"fused_back_pass": _FUSED},
)
