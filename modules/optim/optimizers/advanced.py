"""The advanced optimizers of adv-optm."""

import math
from typing import Annotated, Any, Literal

from modules.optim.spec import (
    FINDS_ITS_RATE,
    SIGN_RATES,
    OptimizerSettings,
    OptimizerSpec,
    Shape,
    always,
    distance_times_rate,
)
from modules.optim.terms import advanced, fields
from modules.optim.terms.removed import RemovedSetting
from modules.settings.field import advanced_setting

_FUSED = RemovedSetting((False,), "the estimate of the learning rate needs all gradients at once.")
_CLIPPING = RemovedSetting((), "adv-optm no longer has it. Use Clip grad norm.")


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


def _spec(settings: type[Any], label: str, factory: str, **facts: Any) -> OptimizerSpec[Any]:
    return OptimizerSpec(
        settings=settings,
        label=label,
        factory=f"modules.optim.classes.advanced:{factory}",
        packages=(advanced.ADV_OPTM,),
        reads_memory_in_order=always,
        **facts,
    )


ADAMW_ADV = _spec(
    AdamWAdv,
    "AdamW (advanced)",
    "AdamWAdv",
    state_bytes=advanced.adam_averages_bytes,
    problems=advanced.beta2_problems,
    removed=advanced.COMPILE | advanced.ADEMAMIX,
)

ADOPT_ADV = _spec(
    AdoptAdv,
    "ADOPT (advanced)",
    "AdoptAdv",
    state_bytes=advanced.adam_averages_bytes,
    problems=advanced.beta2_problems,
    removed=advanced.COMPILE | advanced.ADEMAMIX | advanced.SIMPLIFIED_ADEMAMIX,
)


def _prodigy_state_bytes(settings: ProdigyAdv, shape: Shape) -> float:
    """Adam's two averages, and for every `slice_p`-th weight its initial value and its weighted sum of gradients."""
    return advanced.adam_averages_bytes(settings, shape) + 8.0 * math.ceil(math.prod(shape) / settings.slice_p)


PRODIGY_ADV = _spec(
    ProdigyAdv,
    "Prodigy (advanced)",
    "ProdigyAdv",
    state_bytes=_prodigy_state_bytes,
    rates=FINDS_ITS_RATE,
    problems=advanced.beta2_problems,
    steps_at_once=True,
    group_state=("d", "d_max", "d_numerator", "k"),
    effective_rate=distance_times_rate,
    removed=advanced.COMPILE | advanced.ADEMAMIX | advanced.SIMPLIFIED_ADEMAMIX | {"fused_back_pass": _FUSED},
)

LION_ADV = _spec(
    LionAdv,
    "Lion (advanced)",
    "LionAdv",
    state_bytes=lambda settings, shape: advanced.average_bytes(shape, factored=settings.nnmf_factor),
    rates=SIGN_RATES,
    removed=advanced.COMPILE | {"clip_threshold": _CLIPPING},
)


def _signsgd_state_bytes(settings: SignSgdAdv, shape: Shape) -> float:
    return advanced.average_bytes(shape, factored=settings.nnmf_factor) if settings.momentum > 0 else 0.0


SIGNSGD_ADV = _spec(
    SignSgdAdv,
    "SignSGD (advanced)",
    "SignSgdAdv",
    state_bytes=_signsgd_state_bytes,
    rates=SIGN_RATES,
    removed=advanced.COMPILE | advanced.SIMPLIFIED_ADEMAMIX,
)
