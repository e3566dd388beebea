"""SGD that estimates its learning rate (D-Adaptation)."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import FINDS_ITS_RATE, OptimizerSettings, OptimizerSpec
from modules.optim.terms.general import FirstDistance, GrowthRate, LogEvery, Momentum, Sharded, WeightDecay


class DAdaptSgd(OptimizerSettings):
    """SGD that estimates its learning rate (D-Adaptation)."""

    name: Literal["dadapt_sgd"] = "dadapt_sgd"
    momentum: Momentum = 0.0
    weight_decay: WeightDecay = 0.0
    log_every: LogEvery = 0
    d0: FirstDistance = 1e-6
    growth_rate: GrowthRate = None
    fsdp_in_use: Sharded = False


SPEC = OptimizerSpec(
    settings=DAdaptSgd,
    label="D-Adapt SGD",
    rates=FINDS_ITS_RATE,
    has_one_rate=True,
)
