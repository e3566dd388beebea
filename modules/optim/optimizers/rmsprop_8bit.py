"""RMSprop with 8-bit state."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import OptimizerSettings, OptimizerSpec, per_weight
from modules.optim.terms.general import BlockWise, Epsilon, Momentum, PercentileClipping, Smallest8Bit, WeightDecay
from modules.optim.terms.kin import Centered, Smoothing


class RmsProp8bit(OptimizerSettings):
    """RMSprop with 8-bit state."""

    name: Literal["rmsprop_8bit"] = "rmsprop_8bit"
    alpha: Smoothing = 0.99
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    momentum: Momentum = 0.0
    centered: Centered = False
    min_8bit_size: Smallest8Bit = 4096
    percentile_clipping: PercentileClipping = 100
    block_wise: BlockWise = True


SPEC = OptimizerSpec(
    settings=RmsProp8bit,
    label="RMSprop 8-bit",
    state_bytes=per_weight(1.05),
    needs_gpu=True,
)
