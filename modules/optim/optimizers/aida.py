"""Aida (Zhang et al. 2022): Adam with step sizes that differ less between layers."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from modules.optim.spec import OptimizerSettings, OptimizerSpec
from modules.optim.terms.general import (
    AmsGrad,
    Beta1,
    Beta2,
    DecoupledDecay,
    Epsilon,
    FixedDecay,
    WeightDecay,
    advanced,
)
from modules.optim.terms.kin import AdamDebias, AdaNorm, NormMean, PlainWhileUnsure, Rectify
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
        Ge(0),
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


SPEC = OptimizerSpec(
    settings=Aida,
    label="Aida",
)
