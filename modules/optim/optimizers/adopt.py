"""ADOPT (Taniguchi et al. 2024): Adam that converges with any beta 2."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import OptimizerSettings, OptimizerSpec
from modules.optim.terms.general import Beta1, Beta2, Cautious, DecoupledDecay, Epsilon, FixedDecay, WeightDecay


class Adopt(OptimizerSettings):
    """ADOPT (Taniguchi et al. 2024): Adam that converges with any beta 2."""

    name: Literal["adopt"] = "adopt"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.9999
    weight_decay: WeightDecay = 0.0
    decoupled_decay: DecoupledDecay = False
    fixed_decay: FixedDecay = False
    cautious: Cautious = False
    eps: Epsilon = 1e-6


SPEC = OptimizerSpec(
    settings=Adopt,
    label="ADOPT",
)
