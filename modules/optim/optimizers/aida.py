"""Aida (Zhang et al. 2022): Adam with step sizes that differ less between layers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from modules.optim.spec import OptimizerSettings, OptimizerSpec, Shape
from modules.optim.terms.general import (
    AmsGrad,
    Beta1,
    Beta2,
    DecoupledDecay,
    Epsilon,
    FixedDecay,
    FusedBackPass,
    WeightDecay,
    advanced,
)
from modules.optim.terms.kin import (
    PYTORCH_OPTIMIZER,
    AdamDebias,
    AdaNorm,
    NormMean,
    PlainWhileUnsure,
    Rectify,
    averages_bytes,
)
from modules.settings.field import When


class Aida(OptimizerSettings):
    """Aida (Zhang et al. 2022): Adam with step sizes that differ less between layers."""

    name: Literal["aida"] = "aida"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    k: Annotated[
        int,
        Ge(0),
        Le(100),
        advanced("Projections (k)", "How often the average and the gradient are projected onto each other."),
    ] = 2
    xi: Annotated[
        float, Gt(0), Le(1), advanced("Xi", "Keeps the division in the projections finite; rarely changed.")
    ] = 1e-20
    weight_decay: WeightDecay = 0.0
    decoupled_decay: DecoupledDecay = False
    fixed_decay: FixedDecay = False
    rectify: Rectify = False
    n_sma_threshold: Annotated[
        int,
        Ge(5),  # below, the rectified rate is the root of a negative number
        Le(1000),
        advanced(
            "SMA threshold",
            "The length of the squared-gradient average from which its estimate is used.",
            applies_when=When("rectify", (True,)),
        ),
    ] = 5
    degenerated_to_sgd: PlainWhileUnsure = True
    ams_bound: AmsGrad = False
    r: NormMean = 0.95
    adanorm: AdaNorm = False
    adam_debias: AdamDebias = False
    eps: Epsilon = 1e-8
    fused_back_pass: FusedBackPass = False


def _arguments(settings: Aida) -> dict[str, Any]:
    return {
        "betas": (settings.beta1, settings.beta2),
        "k": settings.k,
        "xi": settings.xi,
        "weight_decay": settings.weight_decay,
        "weight_decouple": settings.decoupled_decay,
        "fixed_decay": settings.fixed_decay,
        "rectify": settings.rectify,
        "n_sma_threshold": settings.n_sma_threshold,
        "degenerated_to_sgd": settings.degenerated_to_sgd,
        "ams_bound": settings.ams_bound,
        "adanorm": settings.adanorm,
        "adanorm_r": settings.r,
        "adam_debias": settings.adam_debias,
        "eps": settings.eps,
    }


def _state_bytes(settings: Aida, shape: Shape) -> float:
    norm = 4.0 if settings.adanorm else 0.0
    return averages_bytes(3 if settings.ams_bound else 2, shape) + norm


SPEC = OptimizerSpec(
    settings=Aida,
    label="Aida",
    factory="modules.optim.classes.counting_by_weight:aida",
    arguments=_arguments,
    state_bytes=_state_bytes,
    waits_per_weight=lambda settings: settings.adanorm,
    packages=(PYTORCH_OPTIMIZER,),
)
