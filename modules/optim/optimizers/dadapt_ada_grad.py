"""AdaGrad that estimates its learning rate (D-Adaptation)."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.optim.spec import FINDS_ITS_RATE, OptimizerSettings, OptimizerSpec
from modules.optim.terms.general import FirstDistance, GrowthRate, LogEvery, Momentum, WeightDecay, advanced


class DAdaptAdaGrad(OptimizerSettings):
    """AdaGrad that estimates its learning rate (D-Adaptation)."""

    name: Literal["dadapt_ada_grad"] = "dadapt_ada_grad"
    momentum: Momentum = 0.0
    log_every: LogEvery = 0
    weight_decay: WeightDecay = 0.0
    eps: Annotated[
        float, Ge(0), Le(1), advanced("Epsilon", "Keeps the division by small gradients finite; 0 turns it off.")
    ] = 0.0
    d0: FirstDistance = 1e-6
    growth_rate: GrowthRate = None


SPEC = OptimizerSpec(
    settings=DAdaptAdaGrad,
    label="D-Adapt AdaGrad",
    rates=FINDS_ITS_RATE,
    has_one_rate=True,
)
