"""AdamW, advanced."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import OptimizerSettings, OptimizerSpec
from modules.optim.terms.advanced import (
    Atan2,
    CautiousDecay,
    Compile,
    FactoredState,
    KourkoutasBeta,
    OrthogonalGradient,
    SlowMean,
    SlowMeanWeight,
    UseAdEMAMix,
)
from modules.optim.terms.general import Beta1, Beta2, Epsilon, FusedBackPassNotYet, WeightDecay


class AdamWAdv(OptimizerSettings):
    """AdamW, advanced."""

    name: Literal["adamw_adv"] = "adamw_adv"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.99
    eps: Epsilon = 1e-8
    cautious_wd: CautiousDecay = False
    weight_decay: WeightDecay = 0.0
    nnmf_factor: FactoredState = False
    compile: Compile = False
    fused_back_pass: FusedBackPassNotYet = False
    use_atan2: Atan2 = False
    orthogonal_gradient: OrthogonalGradient = False
    use_ademamix: UseAdEMAMix = False
    beta3_ema: SlowMean = 0.9999
    alpha: SlowMeanWeight = 5.0
    kourkoutas_beta: KourkoutasBeta = False


SPEC = OptimizerSpec(
    settings=AdamWAdv,
    label="AdamW (advanced)",
)
