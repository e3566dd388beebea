"""AdaBelief (Zhuang et al. 2020): Adam with larger steps where gradients match their running average."""

from __future__ import annotations

from typing import Any, Literal

from modules.optim.spec import OptimizerSettings, OptimizerSpec, Shape
from modules.optim.terms.general import (
    AmsGrad,
    Beta1,
    Beta2,
    DecoupledDecay,
    Epsilon,
    FixedDecay,
    FusedBackPass,
    WeightDecay,
)
from modules.optim.terms.kin import PYTORCH_OPTIMIZER, PlainWhileUnsure, Rectify, averages_bytes


class AdaBelief(OptimizerSettings):
    """AdaBelief (Zhuang et al. 2020): Adam with larger steps where gradients match their running average."""

    name: Literal["adabelief"] = "adabelief"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-16
    weight_decay: WeightDecay = 0.0
    amsgrad: AmsGrad = False
    decoupled_decay: DecoupledDecay = True
    fixed_decay: FixedDecay = False
    rectify: Rectify = True
    degenerated_to_sgd: PlainWhileUnsure = True
    fused_back_pass: FusedBackPass = False


def _arguments(settings: AdaBelief) -> dict[str, Any]:
    return {
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
        "ams_bound": settings.amsgrad,
        "weight_decouple": settings.decoupled_decay,
        "fixed_decay": settings.fixed_decay,
        "rectify": settings.rectify,
        "degenerated_to_sgd": settings.degenerated_to_sgd,
    }


def _state_bytes(settings: AdaBelief, shape: Shape) -> float:
    return averages_bytes(3 if settings.amsgrad else 2, shape)


SPEC = OptimizerSpec(
    settings=AdaBelief,
    label="AdaBelief",
    factory="modules.optim.classes.counting_by_weight:adabelief",
    arguments=_arguments,
    state_bytes=_state_bytes,
    packages=(PYTORCH_OPTIMIZER,),
)
