"""Adam and what stays close to it, as torch has it."""

from __future__ import annotations

from typing import Literal

from modules.config.sections.optimizers.terms import (
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
from modules.settings.field import Section


class AdamW(Section):
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


class Adam(Section):
    """Adam (Kingma and Ba 2015): weight decay goes through the gradients."""

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
