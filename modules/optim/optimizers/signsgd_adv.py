"""SignSGD with momentum, advanced: every weight changes by the full learning rate."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import SIGN_RATES, OptimizerSettings, OptimizerSpec
from modules.optim.terms.advanced import (
    CautiousDecay,
    Compile,
    FactoredState,
    GradientWeight,
    OrthogonalGradient,
    SimplifiedAdEMAMix,
)
from modules.optim.terms.general import FusedBackPassNotYet, Momentum, WeightDecay


class SignSgdAdv(OptimizerSettings):
    """SignSGD with momentum, advanced: every weight changes by the full learning rate."""

    name: Literal["signsgd_adv"] = "signsgd_adv"
    momentum: Momentum = 0.95
    cautious_wd: CautiousDecay = False
    weight_decay: WeightDecay = 0.0
    nnmf_factor: FactoredState = False
    compile: Compile = False
    fused_back_pass: FusedBackPassNotYet = False
    orthogonal_gradient: OrthogonalGradient = False
    simplified_ademamix: SimplifiedAdEMAMix = False
    alpha_grad: GradientWeight = 100.0


SPEC = OptimizerSpec(
    settings=SignSgdAdv,
    label="SignSGD (advanced)",
    rates=SIGN_RATES,
)
