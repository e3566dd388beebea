"""Optimizers that estimate their learning rate: D-Adaptation (Defazio and Mishchenko 2023) and Prodigy."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from modules.optim import rates
from modules.optim.spec import OptimizerSettings, OptimizerSpec, Shape, always, averages
from modules.optim.terms import fields
from modules.settings.field import advanced_setting
from modules.settings.shared_types import Decay, Fraction
from modules.system.factories import Package


class DAdaptAdam(fields.AdamFields):
    """Adam that estimates its learning rate (D-Adaptation)."""

    name: Literal["dadapt_adam"] = "dadapt_adam"
    decouple: fields.DecoupledDecay = False
    use_bias_correction: fields.BiasCorrection = False
    d0: fields.FirstDistance = 1e-6
    growth_rate: fields.GrowthRate = None


class DAdaptAdan(OptimizerSettings):
    """Adan (Xie et al. 2022) that estimates its learning rate (D-Adaptation)."""

    name: Literal["dadapt_adan"] = "dadapt_adan"
    beta1: fields.Beta1 = 0.98
    beta2: Annotated[Decay, advanced_setting("Beta 2", "Decay of the running average of the gradients' change.")] = 0.92
    beta3: Annotated[Decay, advanced_setting("Beta 3", "Decay of the running average of squared gradients.")] = 0.99
    eps: fields.Epsilon = 1e-8
    weight_decay: fields.WeightDecay = 0.02
    no_prox: Annotated[
        bool,
        advanced_setting(
            "No prox", "Applies weight decay before the step, as AdamW does, not as a proximal step after it."
        ),
    ] = False
    d0: fields.FirstDistance = 1e-6
    growth_rate: fields.GrowthRate = None


class DAdaptAdaGrad(OptimizerSettings):
    """AdaGrad that estimates its learning rate (D-Adaptation)."""

    name: Literal["dadapt_ada_grad"] = "dadapt_ada_grad"
    momentum: fields.Momentum = 0.0
    weight_decay: fields.WeightDecay = 0.0
    eps: Annotated[
        Fraction, advanced_setting("Epsilon", "Keeps the division by small gradients finite; 0 turns it off.")
    ] = 0.0
    d0: fields.FirstDistance = 1e-6
    growth_rate: fields.GrowthRate = None


class DAdaptLion(OptimizerSettings):
    """Lion that estimates its learning rate (D-Adaptation)."""

    name: Literal["dadapt_lion"] = "dadapt_lion"
    beta1: fields.Beta1 = 0.9
    beta2: fields.Beta2 = 0.999
    weight_decay: fields.WeightDecay = 0.0
    d0: fields.FirstDistance = 1e-6


class DAdaptSgd(OptimizerSettings):
    """SGD that estimates its learning rate (D-Adaptation)."""

    name: Literal["dadapt_sgd"] = "dadapt_sgd"
    momentum: fields.Momentum = 0.0
    weight_decay: fields.WeightDecay = 0.0
    d0: fields.FirstDistance = 1e-6
    growth_rate: fields.GrowthRate = None


_CLASSES = "modules.optim.classes.d_adaptation"
_FINDS_ITS_RATE: dict[str, Any] = {"rates": rates.FINDS_ITSELF, "waits_per_weight": always, "has_one_rate": True}


def _spec(
    settings: type[Any],
    label: str,
    factory: str,
    num_arrays: int,
    *group_state: str,
    effective_rate: rates.EffectiveRate = rates.distance_times_rate,
    lacks: tuple[str, ...] = ("log_every", "fsdp_in_use"),
) -> OptimizerSpec[Any]:
    return OptimizerSpec(
        settings,
        label,
        factory,
        state_bytes=averages(num_arrays),
        packages=(Package("dadaptation"),),
        group_state=("d", "k", *group_state),
        effective_rate=effective_rate,
        lacks=lacks,
        **_FINDS_ITS_RATE,
    )


DADAPT_ADAM = _spec(DAdaptAdam, "D-Adapt Adam", "dadaptation:DAdaptAdam", 3, "numerator_weighted")

DADAPT_ADAN = _spec(DAdaptAdan, "D-Adapt Adan", "dadaptation:DAdaptAdan", 5, "gsq_weighted", lacks=("log_every",))

DADAPT_ADA_GRAD = _spec(
    DAdaptAdaGrad,
    "D-Adapt AdaGrad",
    f"{_CLASSES}:ada_grad",
    3,
    "gsq_weighted",
    "sksq_weighted",
    "skl1",
    lacks=("log_every",),
)

DADAPT_LION = _spec(DAdaptLion, "D-Adapt Lion", "dadaptation:DAdaptLion", 2, "numerator_weighted")


def _rate_of_sgd(group: Mapping[str, Any]) -> float | None:
    """The step size: as in the other variants, over the norm of the first gradient; None before it is known."""
    first_norm = group.get("g0_norm")
    return float(group["d"] * group["lr"] / first_norm) if first_norm else None


DADAPT_SGD = _spec(
    DAdaptSgd, "D-Adapt SGD", f"{_CLASSES}:DAdaptSGD", 3, "numerator_weighted", "g0_norm", effective_rate=_rate_of_sgd
)


class Prodigy(OptimizerSettings):
    """Prodigy (Mishchenko and Defazio 2023): estimates its learning rate."""

    name: Literal["prodigy"] = "prodigy"
    beta1: fields.Beta1 = 0.9
    beta2: fields.Beta2 = 0.999
    beta3: fields.SlowBeta = None
    eps: fields.Epsilon = 1e-8
    weight_decay: fields.WeightDecay = 0.0
    decouple: fields.DecoupledDecay = True
    use_bias_correction: fields.BiasCorrection = False
    safeguard_warmup: Annotated[
        bool,
        advanced_setting("Safeguard warmup", "Leaves the small learning rates of the warm-up out of the estimate."),
    ] = False
    d0: fields.FirstDistance = 1e-6
    d_coef: fields.DistanceFactor = 1.0
    growth_rate: fields.GrowthRate = None
    slice_p: fields.SliceEvery = 11


def _state_bytes(settings: Prodigy, shape: Shape) -> float:
    """Adam's two averages, and for every `slice_p`-th weight its initial value and its weighted sum of gradients."""
    size = math.prod(shape)
    means = 2 if settings.beta1 > 0 else 1
    return 4.0 * (means * size + 2 * math.ceil(size / settings.slice_p))


PRODIGY = OptimizerSpec(
    Prodigy,
    "Prodigy",
    "prodigyopt:Prodigy",
    state_bytes=_state_bytes,
    group_state=("d", "d_max", "d_numerator", "k"),
    effective_rate=rates.distance_times_rate,
    lacks=("fsdp_in_use",),
    **_FINDS_ITS_RATE,
)
