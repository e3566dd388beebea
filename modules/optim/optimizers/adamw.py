"""AdamW (Loshchilov and Hutter 2019): the usual choice."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import OptimizerSettings, OptimizerSpec
from modules.optim.terms.adam import adam_arguments, adam_state_bytes
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


SPEC = OptimizerSpec(
    settings=AdamW,
    label="AdamW",
    factory="torch.optim:AdamW",
    is_elementwise=True,
    arguments=adam_arguments,
    state_bytes=adam_state_bytes,
    skips_on_device=lambda settings: settings.fused,
    removed={"capturable": CAPTURABLE, "differentiable": DIFFERENTIABLE},
)
