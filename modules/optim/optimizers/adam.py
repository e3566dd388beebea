"""Adam (Kingma and Ba 2015): weight decay is added to the gradients (L2)."""

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


class Adam(OptimizerSettings):
    """Adam (Kingma and Ba 2015): weight decay is added to the gradients (L2)."""

    name: Literal["adam"] = "adam"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    amsgrad: AmsGrad = False
    foreach: ForeachUnlessFused = False
    maximize: Maximize = False
    capturable: Capturable = False
    differentiable: Differentiable = False
    fused: Fused = True
    fused_back_pass: FusedBackPass = False


def _arguments(settings: Adam) -> dict[str, Any]:
    return {
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
        "amsgrad": settings.amsgrad,
        "maximize": settings.maximize,
        "fused": settings.fused,
        "foreach": settings.foreach and not settings.fused,
    }


def _state_bytes(settings: Adam, shape: Shape) -> float:
    """The averages of gradients and of squared gradients, and with AMSGrad the maximum of the latter."""
    return (12.0 if settings.amsgrad else 8.0) * math.prod(shape)


SPEC = OptimizerSpec(
    settings=Adam,
    label="Adam",
    factory="torch.optim:Adam",
    arguments=_arguments,
    state_bytes=_state_bytes,
)
