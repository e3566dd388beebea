"""AdamW (Loshchilov and Hutter 2019): the usual choice."""

from __future__ import annotations

import math
from typing import Any, Literal

from modules.optim.spec import OptimizerSettings, OptimizerSpec, Shape
from modules.optim.terms.general import (
    AmsGrad,
    Beta1,
    Beta2,
    Capturable,
    Differentiable,
    Epsilon,
    ForeachUnlessFused,
    Fused,
    FusedBackPass,
    Maximize,
    WeightDecay,
)


class AdamW(OptimizerSettings):
    """AdamW (Loshchilov and Hutter 2019): the usual choice."""

    name: Literal["adamw"] = "adamw"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.01
    amsgrad: AmsGrad = False
    foreach: ForeachUnlessFused = False
    maximize: Maximize = False
    capturable: Capturable = False
    differentiable: Differentiable = False
    fused: Fused = True
    fused_back_pass: FusedBackPass = False


def _arguments(settings: AdamW) -> dict[str, Any]:
    return {
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
        "amsgrad": settings.amsgrad,
        "maximize": settings.maximize,
        "fused": settings.fused,
        "foreach": settings.foreach and not settings.fused,
    }


def _state_bytes(settings: AdamW, shape: Shape) -> float:
    """The averages of gradients and of squared gradients, and with AMSGrad the maximum of the latter."""
    return (12.0 if settings.amsgrad else 8.0) * math.prod(shape)


SPEC = OptimizerSpec(
    settings=AdamW,
    label="AdamW",
    factory="torch.optim:AdamW",
    arguments=_arguments,
    state_bytes=_state_bytes,
)
