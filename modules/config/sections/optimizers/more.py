"""Adam's relatives: AdaBelief, ADOPT, AIDA, TIGER and Yogi."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from modules.config.sections.optimizers.terms import (
    AmsGrad,
    Beta1,
    Beta2,
    Cautious,
    DecoupledDecay,
    Epsilon,
    FixedDecay,
    WeightDecay,
    advanced,
)
from modules.settings.field import Section, When

Rectify = Annotated[
    bool, advanced("Rectify", "Holds the first steps back while little is known of the squares (Liu et al. 2020).")
]
PlainWhileUnsure = Annotated[
    bool,
    advanced(
        "Plain steps at first",
        "While little is known of the squares, steps as plain descent does, not at all otherwise.",
        applies_when=When("rectify", (True,)),
    ),
]
NormMean = Annotated[
    float,
    Ge(0),
    Le(1),
    advanced(
        "Mean of norms (r)", "How long the mean of gradient norms remembers.", applies_when=When("adanorm", (True,))
    ),
]
AdaNorm = Annotated[bool, advanced("AdaNorm", "Lifts unusually small gradients to their usual size.")]
AdamDebias = Annotated[bool, advanced("Correct only the squares", "Corrects the bias of the squares' mean alone.")]


class AdaBelief(Section):
    """AdaBelief (Zhuang et al. 2020): steps by how well the gradient was foreseen."""

    name: Literal["adabelief"] = "adabelief"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-16
    weight_decay: WeightDecay = 0.0
    amsgrad: AmsGrad = False
    decoupled_decay: DecoupledDecay = True
    fixed_decay: FixedDecay = False
    rectify: Rectify = True
    degenerated_to_sgd: PlainWhileUnsure = True


class Adopt(Section):
    """ADOPT (Taniguchi et al. 2024): Adam that converges with any beta 2."""

    name: Literal["adopt"] = "adopt"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.9999
    weight_decay: WeightDecay = 0.0
    decoupled_decay: DecoupledDecay = False
    fixed_decay: FixedDecay = False
    cautious: Cautious = False
    eps: Epsilon = 1e-6


class Aida(Section):
    """Aida (Zhang et al. 2022): Adam whose steps differ less from layer to layer."""

    name: Literal["aida"] = "aida"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    k: Annotated[
        int,
        Ge(0),
        Le(100),
        advanced("Projections (k)", "How often mean and gradient are projected onto each other."),
    ] = 2
    xi: Annotated[
        float, Gt(0), Le(1), advanced("Xi", "Keeps the division in the projections finite; rarely touched.")
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
            "Rectify from",
            "How much has to be known of the squares before they count.",
            applies_when=When("rectify", (True,)),
        ),
    ] = 5
    degenerated_to_sgd: PlainWhileUnsure = True
    ams_bound: AmsGrad = False
    r: NormMean = 0.95
    adanorm: AdaNorm = False
    adam_debias: AdamDebias = False
    eps: Epsilon = 1e-8


class Tiger(Section):
    """TIGER (Su 2023): Lion with a single mean, the least memory of its kind."""

    name: Literal["tiger"] = "tiger"
    beta1: Beta1 = 0.965
    weight_decay: WeightDecay = 0.01
    decoupled_decay: DecoupledDecay = True
    fixed_decay: FixedDecay = False


class Yogi(Section):
    """Yogi (Zaheer et al. 2018): Adam whose step sizes grow slowly."""

    name: Literal["yogi"] = "yogi"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    weight_decay: WeightDecay = 0.0
    decoupled_decay: DecoupledDecay = True
    fixed_decay: FixedDecay = False
    r: NormMean = 0.95
    adanorm: AdaNorm = False
    adam_debias: AdamDebias = False
    initial_accumulator: Annotated[
        float,
        Ge(0),
        Le(1000),
        advanced("First square", "What the mean of squared gradients begins with: more makes the first steps smaller."),
    ] = 1e-6
    eps: Epsilon = 1e-3
