"""SGD with 8-bit momentum."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import PLAIN_RATES, OptimizerSettings, OptimizerSpec, per_weight
from modules.optim.terms.general import (
    BlockWise,
    Dampening,
    Momentum,
    Nesterov,
    PercentileClipping,
    Smallest8Bit,
    WeightDecay,
)


class Sgd8bit(OptimizerSettings):
    """SGD with 8-bit momentum."""

    name: Literal["sgd_8bit"] = "sgd_8bit"
    momentum: Momentum = 0.0
    dampening: Dampening = 0.0
    weight_decay: WeightDecay = 0.0
    nesterov: Nesterov = False
    min_8bit_size: Smallest8Bit = 4096
    percentile_clipping: PercentileClipping = 100
    block_wise: BlockWise = True


SPEC = OptimizerSpec(
    settings=Sgd8bit,
    label="SGD 8-bit",
    rates=PLAIN_RATES,
    state_bytes=per_weight(1.05),
    needs_gpu=True,
)
