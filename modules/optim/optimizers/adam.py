"""Adam and AdamW as torch has them, the latter the default of the window."""

from __future__ import annotations

from typing import Any, Literal

from modules.optim.spec import OptimizerSettings, OptimizerSpec
from modules.optim.terms.arguments import by_name
from modules.optim.terms.general import (
    AmsGrad,
    Beta1,
    Beta2,
    Epsilon,
    ForeachUnlessFused,
    Fused,
    FusedBackPass,
    Maximize,
    WeightDecay,
)
from modules.optim.terms.removed import CAPTURABLE, DIFFERENTIABLE


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
    fused: Fused = True
    fused_back_pass: FusedBackPass = False


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
    fused: Fused = True
    fused_back_pass: FusedBackPass = False


def _spec(settings: type[Any], label: str, factory: str) -> OptimizerSpec[Any]:
    return OptimizerSpec(
        settings=settings,
        label=label,
        factory=factory,
        is_elementwise=True,
        arguments=by_name(more=lambda s: {"foreach": s.foreach and not s.fused}),
        skips_on_device=lambda s: bool(s.fused),
        removed={"capturable": CAPTURABLE, "differentiable": DIFFERENTIABLE},
    )


ADAMW = _spec(AdamW, "AdamW", "torch.optim:AdamW")

ADAM = _spec(Adam, "Adam", "torch.optim:Adam")
