"""LAMB (You et al. 2020): Adam for very large batches."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import LARGER_RATES, OptimizerSettings, OptimizerSpec
from modules.optim.terms.general import (
    AmsGrad,
    Beta1,
    Beta2,
    BiasCorrection,
    BlockWise,
    Epsilon,
    PercentileClipping,
    Smallest8Bit,
    StateBits,
    WeightDecay,
)
from modules.optim.terms.kin import AdamWMode, LargestUpdate


class Lamb(OptimizerSettings):
    """LAMB (You et al. 2020): Adam for very large batches."""

    name: Literal["lamb"] = "lamb"
    bias_correction: BiasCorrection = True
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    amsgrad: AmsGrad = False
    adam_w_mode: AdamWMode = True
    optim_bits: StateBits = "32"
    min_8bit_size: Smallest8Bit = 4096
    percentile_clipping: PercentileClipping = 100
    block_wise: BlockWise = False
    max_unorm: LargestUpdate = 1.0


SPEC = OptimizerSpec(
    settings=Lamb,
    label="LAMB",
    rates=LARGER_RATES,
)
