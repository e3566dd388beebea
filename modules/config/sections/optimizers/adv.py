"""The advanced optimizers (adv_optm): well known ones, with what was found since as switches."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Gt, Le

from modules.config.sections.optimizers.adv_terms import (
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
from modules.config.sections.optimizers.terms import (
    Beta1,
    Beta2,
    DistanceFactor,
    Epsilon,
    FirstDistance,
    FusedBackPassNotYet,
    GrowthRate,
    LimitDistance,
    Momentum,
    SearchSteps,
    SliceEvery,
    SlowBeta,
    WeightDecay,
    advanced,
)
from modules.settings.field import Section


class AdamWAdv(Section):
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


class AdoptAdv(Section):
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


class ProdigyAdv(Section):
    """Prodigy, advanced: finds its learning rate; set it to 1."""

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


class SignSgdAdv(Section):
    """SignSGD with momentum, advanced: every weight moves by the whole rate."""

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


class LionAdv(Section):
    """Lion, advanced."""

    name: Literal["lion_adv"] = "lion_adv"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.99
    cautious_wd: CautiousDecay = False
    weight_decay: WeightDecay = 0.0
    clip_threshold: Annotated[
        float | None,
        Gt(0),
        Le(10_000),
        advanced("Gradient clipping", "Scales the gradient of a tensor down to this norm.", empty_means="no clipping"),
    ] = None
    nnmf_factor: FactoredState = False
    compile: Compile = False
    fused_back_pass: FusedBackPassNotYet = False
    orthogonal_gradient: OrthogonalGradient = False
    auto_kappa_p: Annotated[
        bool,
        advanced("Shape by layer", "Chooses for each kind of layer between the sign and the plain direction."),
    ] = True
