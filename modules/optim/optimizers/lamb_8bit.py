"""LAMB with 8-bit state."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import LARGER_RATES, OptimizerSettings, OptimizerSpec, per_weight
from modules.optim.terms.general import (
    AmsGrad,
    Beta1,
    Beta2,
    BiasCorrection,
    BlockWise,
    Epsilon,
    PercentileClipping,
    Smallest8Bit,
    WeightDecay,
)
from modules.optim.terms.kin import AdamWMode, LargestUpdate


class Lamb8bit(OptimizerSettings):
    """LAMB with 8-bit state."""

    name: Literal["lamb_8bit"] = "lamb_8bit"
    bias_correction: BiasCorrection = True
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    amsgrad: AmsGrad = False
    adam_w_mode: AdamWMode = True
    min_8bit_size: Smallest8Bit = 4096
    percentile_clipping: PercentileClipping = 100
    block_wise: BlockWise = False
    max_unorm: LargestUpdate = 1.0


SPEC = OptimizerSpec(
    settings=Lamb8bit,
    label="LAMB 8-bit",
    rates=LARGER_RATES,
    state_bytes=per_weight(2.1),
    needs_gpu=True,
)
