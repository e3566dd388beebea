"""Yogi (Zaheer et al. 2018): Adam with step sizes that grow slowly."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.optim.spec import OptimizerSettings, OptimizerSpec
from modules.optim.terms.general import Beta1, Beta2, DecoupledDecay, Epsilon, FixedDecay, WeightDecay, advanced
from modules.optim.terms.kin import AdamDebias, AdaNorm, NormMean


class Yogi(OptimizerSettings):
    """Yogi (Zaheer et al. 2018): Adam with step sizes that grow slowly."""

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
        advanced(
            "Initial accumulator",
            "The start value of the squared-gradient average: a larger value makes the first steps smaller.",
        ),
    ] = 1e-6
    eps: Epsilon = 1e-3


SPEC = OptimizerSpec(
    settings=Yogi,
    label="Yogi",
)
