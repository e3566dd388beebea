"""Prodigy, advanced: estimates its learning rate; set it to 1."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import FINDS_ITS_RATE, OptimizerSettings, OptimizerSpec
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
from modules.optim.terms.general import (
    Beta1,
    Beta2,
    DistanceFactor,
    Epsilon,
    FirstDistance,
    FusedBackPassNotYet,
    GrowthRate,
    LimitDistance,
    SearchSteps,
    SliceEvery,
    SlowBeta,
    WeightDecay,
)


class ProdigyAdv(OptimizerSettings):
    """Prodigy, advanced: estimates its learning rate; set it to 1."""

    name: Literal["prodigy_adv"] = "prodigy_adv"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.99
    beta3: SlowBeta = None
    eps: Epsilon = 1e-8
    cautious_wd: CautiousDecay = False
    weight_decay: WeightDecay = 0.0
    nnmf_factor: FactoredState = False
    compile: Compile = False
    fused_back_pass: FusedBackPassNotYet = False
    d0: FirstDistance = 1e-6
    d_coef: DistanceFactor = 1.0
    growth_rate: GrowthRate = None
    slice_p: SliceEvery = 11
    prodigy_steps: SearchSteps = 0
    d_limiter: LimitDistance = False
    use_atan2: Atan2 = False
    orthogonal_gradient: OrthogonalGradient = False
    use_ademamix: UseAdEMAMix = False
    beta3_ema: SlowMean = 0.9999
    alpha: SlowMeanWeight = 5.0
    simplified_ademamix: SimplifiedAdEMAMix = False
    alpha_grad: GradientWeight = 100.0
    kourkoutas_beta: KourkoutasBeta = False


SPEC = OptimizerSpec(
    settings=ProdigyAdv,
    label="Prodigy (advanced)",
    rates=FINDS_ITS_RATE,
)
