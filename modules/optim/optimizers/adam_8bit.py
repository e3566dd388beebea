"""Adam with 8-bit state (Dettmers et al. 2022)."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import OptimizerSettings, OptimizerSpec, per_weight
from modules.optim.terms.general import (
    AmsGrad,
    Beta1,
    Beta2,
    BlockWise,
    Epsilon,
    Paged,
    PercentileClipping,
    Smallest8Bit,
    StateBits,
    WeightDecay,
)


class Adam8bit(OptimizerSettings):
    """Adam with 8-bit state (Dettmers et al. 2022)."""

    name: Literal["adam_8bit"] = "adam_8bit"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    amsgrad: AmsGrad = False
    optim_bits: StateBits = "32"
    min_8bit_size: Smallest8Bit = 4096
    percentile_clipping: PercentileClipping = 100
    block_wise: BlockWise = True
    is_paged: Paged = False


SPEC = OptimizerSpec(
    settings=Adam8bit,
    label="Adam 8-bit",
    state_bytes=per_weight(2.1),
    needs_gpu=True,
)
