"""AdaGrad with 8-bit state."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import LARGER_RATES, OptimizerSettings, OptimizerSpec, per_weight
from modules.optim.terms.general import (
    BlockWise,
    Epsilon,
    FusedBackPassNotYet,
    PercentileClipping,
    Smallest8Bit,
    StateBits,
    WeightDecay,
)
from modules.optim.terms.kin import FirstSum, RateDecay


class Adagrad8bit(OptimizerSettings):
    """AdaGrad with 8-bit state."""

    name: Literal["adagrad_8bit"] = "adagrad_8bit"
    lr_decay: RateDecay = 0.0
    weight_decay: WeightDecay = 0.0
    initial_accumulator_value: FirstSum = 0.0
    eps: Epsilon = 1e-10
    optim_bits: StateBits = "8"
    min_8bit_size: Smallest8Bit = 4096
    percentile_clipping: PercentileClipping = 100
    block_wise: BlockWise = True
    fused_back_pass: FusedBackPassNotYet = False


SPEC = OptimizerSpec(
    settings=Adagrad8bit,
    label="AdaGrad 8-bit",
    rates=LARGER_RATES,
    state_bytes=per_weight(1.05),
    needs_gpu=True,
)
