"""The advanced optimizers of adv-optm."""

import math
from typing import Annotated, Literal

from modules.optim import rates
from modules.optim.spec import OptimizerSettings, OptimizerSpec, Shape
from modules.optim.terms import advanced, fields
from modules.settings.field import advanced_setting

_ADEMAMIX = ("use_AdEMAMix", "beta3_ema", "alpha")


class _AdvancedAdam(OptimizerSettings):
    beta1: fields.Beta1 = 0.9
    beta2: fields.Beta2 = 0.99
    eps: fields.Epsilon = 1e-8
    cautious_wd: advanced.CautiousDecay = False
    weight_decay: fields.WeightDecay = 0.0
    nnmf_factor: advanced.FactoredState = False
    use_atan2: advanced.Atan2 = False
    orthogonal_gradient: advanced.OrthogonalGradient = False
    kourkoutas_beta: Annotated[
        bool,
        advanced_setting(
            "Kourkoutas beta", "Lowers beta 2 of each weight tensor, down to 0.9, while its gradients vary strongly."
        ),
    ] = False


class AdamWAdv(_AdvancedAdam):
    """AdamW, advanced: with further options for its state and its momentum."""

    name: Literal["adamw_adv"] = "adamw_adv"
    fused_back_pass: fields.FusedBackPass = False


class AdoptAdv(_AdvancedAdam):
    """ADOPT, advanced: with further options for its state and its momentum."""

    name: Literal["adopt_adv"] = "adopt_adv"
    beta2: fields.Beta2 = 0.9999
    eps: fields.Epsilon = 1e-6
    use_atan2: advanced.Atan2 = True
    fused_back_pass: fields.FusedBackPass = False


class ProdigyAdv(_AdvancedAdam):
    """Prodigy, advanced: estimates its learning rate; set it to 1."""

    name: Literal["prodigy_adv"] = "prodigy_adv"
    beta3: fields.SlowBeta = None
    d0: fields.FirstDistance = 1e-6
    d_coef: fields.DistanceFactor = 1.0
    growth_rate: fields.GrowthRate = None
    slice_p: fields.SliceEvery = 11
    prodigy_steps: fields.SearchSteps = 0
    d_limiter: fields.LimitDistance = False


class LionAdv(OptimizerSettings):
    """Lion, advanced: with further options for its state and its momentum."""

    name: Literal["lion_adv"] = "lion_adv"
    beta1: fields.Beta1 = 0.9
    beta2: fields.Beta2 = 0.99
    cautious_wd: advanced.CautiousDecay = False
    weight_decay: fields.WeightDecay = 0.0
    nnmf_factor: advanced.FactoredState = False
    fused_back_pass: fields.FusedBackPass = False
    orthogonal_gradient: advanced.OrthogonalGradient = False
    auto_kappa_p: Annotated[
        bool,
        advanced_setting(
            "Auto kappa p",
            "Updates convolution kernels by the raw direction, everything else by its sign, as Lion does.",
        ),
    ] = True


class SignSgdAdv(OptimizerSettings):
    """SignSGD with momentum, advanced: every weight changes by the full learning rate."""

    name: Literal["signsgd_adv"] = "signsgd_adv"
    momentum: fields.Momentum = 0.95
    cautious_wd: advanced.CautiousDecay = False
    weight_decay: fields.WeightDecay = 0.0
    nnmf_factor: advanced.FactoredState = False
    fused_back_pass: fields.FusedBackPass = False
    orthogonal_gradient: advanced.OrthogonalGradient = False


ADAMW_ADV = OptimizerSpec(
    AdamWAdv,
    "AdamW (advanced)",
    f"{advanced.CLASSES}:AdamWAdv",
    **advanced.ADV_OPTM,
    state_bytes=advanced.adam_averages_bytes,
    problems=advanced.beta2_problems,
    lacks=("compile", *_ADEMAMIX),
)

ADOPT_ADV = OptimizerSpec(
    AdoptAdv,
    "ADOPT (advanced)",
    f"{advanced.CLASSES}:AdoptAdv",
    **advanced.ADV_OPTM,
    state_bytes=advanced.adam_averages_bytes,
    problems=advanced.beta2_problems,
    lacks=("compile", *_ADEMAMIX, *advanced.SIMPLIFIED_ADEMAMIX),
)


def _prodigy_state_bytes(settings: ProdigyAdv, shape: Shape) -> float:
    """Adam's two averages, and for every `slice_p`-th weight its initial value and its weighted sum of gradients."""
    return advanced.adam_averages_bytes(settings, shape) + 8.0 * math.ceil(math.prod(shape) / settings.slice_p)


PRODIGY_ADV = OptimizerSpec(
    ProdigyAdv,
    "Prodigy (advanced)",
    f"{advanced.CLASSES}:ProdigyAdv",
    **advanced.ADV_OPTM,
    state_bytes=_prodigy_state_bytes,
    rates=rates.FINDS_ITSELF,
    problems=advanced.beta2_problems,
    group_state=("d", "d_max", "d_numerator", "k"),
    effective_rate=rates.distance_times_rate,
    lacks=("compile", *_ADEMAMIX, *advanced.SIMPLIFIED_ADEMAMIX, "fused_back_pass"),
)

LION_ADV = OptimizerSpec(
    LionAdv,
    "Lion (advanced)",
    f"{advanced.CLASSES}:LionAdv",
    **advanced.ADV_OPTM,
    state_bytes=lambda settings, shape: advanced.average_bytes(shape, factored=settings.nnmf_factor),
    rates=rates.SIGN,
    lacks=("compile", "clip_threshold"),
)


def _signsgd_state_bytes(settings: SignSgdAdv, shape: Shape) -> float:
    return advanced.average_bytes(shape, factored=settings.nnmf_factor) if settings.momentum > 0 else 0.0


SIGNSGD_ADV = OptimizerSpec(
    SignSgdAdv,
    "SignSGD (advanced)",
    f"{advanced.CLASSES}:SignSgdAdv",
    **advanced.ADV_OPTM,
    state_bytes=_signsgd_state_bytes,
    rates=rates.SIGN,
    lacks=("compile", *advanced.SIMPLIFIED_ADEMAMIX),
)
