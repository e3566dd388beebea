"""AdamW, advanced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from modules.optim.spec import OptimizerSettings, OptimizerSpec, Shape, always
from modules.optim.terms.advanced import (
    ADEMAMIX,
    ADV_OPTM,
    COMPILE,
    Atan2,
    CautiousDecay,
    FactoredState,
    KourkoutasBeta,
    OrthogonalGradient,
    adam_averages_bytes,
    beta2_problems,
    orthogonal,
)
from modules.optim.terms.general import Beta1, Beta2, Epsilon, FusedBackPass, WeightDecay
from modules.system.problem import Problem


class AdamWAdv(OptimizerSettings):
    """AdamW, advanced."""

    name: Literal["adamw_adv"] = "adamw_adv"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.99
    eps: Epsilon = 1e-8
    cautious_wd: CautiousDecay = False
    weight_decay: WeightDecay = 0.0
    nnmf_factor: FactoredState = False
    fused_back_pass: FusedBackPass = False
    use_atan2: Atan2 = False
    orthogonal_gradient: OrthogonalGradient = False
    kourkoutas_beta: KourkoutasBeta = False


def _arguments(settings: AdamWAdv) -> dict[str, Any]:
    return {
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.eps,
        "cautious_wd": settings.cautious_wd,
        "weight_decay": settings.weight_decay,
        "nnmf_factor": settings.nnmf_factor,
        "use_atan2": settings.use_atan2,
        "orthogonal_gradient": orthogonal(settings.orthogonal_gradient),
        "kourkoutas_beta": settings.kourkoutas_beta,
    }


def _state_bytes(settings: AdamWAdv, shape: Shape) -> float:
    return adam_averages_bytes(
        shape, beta1=settings.beta1, factored=settings.nnmf_factor, kourkoutas_beta=settings.kourkoutas_beta
    )


def _problems(settings: AdamWAdv) -> Iterator[Problem]:
    return beta2_problems(settings.kourkoutas_beta, settings.beta2)


SPEC = OptimizerSpec(
    settings=AdamWAdv,
    label="AdamW (advanced)",
    factory="modules.optim.classes.advanced:AdamWAdv",
    arguments=_arguments,
    state_bytes=_state_bytes,
    packages=(ADV_OPTM,),
    reads_memory_in_order=always,
    problems=_problems,
    removed=COMPILE | ADEMAMIX,
)
