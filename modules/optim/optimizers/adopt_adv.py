"""ADOPT, advanced."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import OptimizerSettings, OptimizerSpec
from modules.optim.terms.advanced import (
    Atan2,
    CautiousDecay,
    Compile,
    FactoredState,
    GradientWeight,
    KourkoutasBeta,
    OrthogonalGradient,
    SimplifiedAdEMAMix,
    SlowMean,
    SlowMeanWeight,
    UseAdEMAMix,
)
from modules.optim.terms.general import Beta1, Beta2, Epsilon, FusedBackPassNotYet, WeightDecay


class AdoptAdv(OptimizerSettings):
    """ADOPT, advanced."""

    name: Literal["adopt_adv"] = "adopt_adv"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.9999
    eps: Epsilon = 1e-6
    cautious_wd: CautiousDecay = False
    weight_decay: WeightDecay = 0.0
    nnmf_factor: FactoredState = False
    compile: Compile = False
    fused_back_pass: FusedBackPassNotYet = False
    use_atan2: Atan2 = True
    orthogonal_gradient: OrthogonalGradient = False
    use_ademamix: UseAdEMAMix = False
    beta3_ema: SlowMean = 0.9999
    alpha: SlowMeanWeight = 5.0
    simplified_ademamix: SimplifiedAdEMAMix = False
    alpha_grad: GradientWeight = 100.0
    kourkoutas_beta: KourkoutasBeta = False


SPEC = OptimizerSpec(
    settings=AdoptAdv,
    label="ADOPT (advanced)",
)
