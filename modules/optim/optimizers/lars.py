"""LARS (You et al. 2017): SGD for very large batches."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import PLAIN_RATES, OptimizerSettings, OptimizerSpec, per_weight
from modules.optim.terms.general import (
    Dampening,
    Momentum,
    Nesterov,
    PercentileClipping,
    Smallest8Bit,
    StateBits,
    WeightDecay,
)
from modules.optim.terms.kin import LargestUpdate


class Lars(OptimizerSettings):
    """LARS (You et al. 2017): SGD for very large batches."""

    name: Literal["lars"] = "lars"
    momentum: Momentum = 0.0
    dampening: Dampening = 0.0
    weight_decay: WeightDecay = 0.0
    nesterov: Nesterov = False
    optim_bits: StateBits = "32"
    min_8bit_size: Smallest8Bit = 4096
    percentile_clipping: PercentileClipping = 100
    max_unorm: LargestUpdate = 0.02


SPEC = OptimizerSpec(
    settings=Lars,
    label="LARS",
    rates=PLAIN_RATES,
    state_bytes=per_weight(4.0),
)
