"""SignSGD with momentum, advanced: every weight changes by the full learning rate."""

from __future__ import annotations

from typing import Any, Literal

from modules.optim.spec import SIGN_RATES, OptimizerSettings, OptimizerSpec, Shape, always
from modules.optim.terms.advanced import (
    ADV_OPTM,
    COMPILE,
    SIMPLIFIED_ADEMAMIX,
    CautiousDecay,
    FactoredState,
    OrthogonalGradient,
    average_bytes,
    orthogonal,
)
from modules.optim.terms.general import FusedBackPass, Momentum, WeightDecay


class SignSgdAdv(OptimizerSettings):
    """SignSGD with momentum, advanced: every weight changes by the full learning rate."""

    name: Literal["signsgd_adv"] = "signsgd_adv"
    momentum: Momentum = 0.95
    cautious_wd: CautiousDecay = False
    weight_decay: WeightDecay = 0.0
    nnmf_factor: FactoredState = False
    fused_back_pass: FusedBackPass = False
    orthogonal_gradient: OrthogonalGradient = False


def _arguments(settings: SignSgdAdv) -> dict[str, Any]:
    return {
        "momentum": settings.momentum,
        "cautious_wd": settings.cautious_wd,
        "weight_decay": settings.weight_decay,
        "nnmf_factor": settings.nnmf_factor,
        "orthogonal_gradient": orthogonal(settings.orthogonal_gradient),
    }


def _state_bytes(settings: SignSgdAdv, shape: Shape) -> float:
    return average_bytes(shape, factored=settings.nnmf_factor) if settings.momentum > 0 else 0.0


SPEC = OptimizerSpec(
    settings=SignSgdAdv,
    label="SignSGD (advanced)",
    factory="modules.optim.classes.advanced:SignSgdAdv",
    arguments=_arguments,
    state_bytes=_state_bytes,
    rates=SIGN_RATES,
    packages=(ADV_OPTM,),
    reads_memory_in_order=always,
    removed=COMPILE | SIMPLIFIED_ADEMAMIX,
)
