"""Lion with 8-bit momentum."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import SIGN_RATES, OptimizerSettings, OptimizerSpec, per_weight
from modules.optim.terms.general import Beta1, Beta2, BlockWise, Paged, PercentileClipping, Smallest8Bit, WeightDecay


class Lion8bit(OptimizerSettings):
    """Lion with 8-bit momentum."""

    name: Literal["lion_8bit"] = "lion_8bit"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    weight_decay: WeightDecay = 0.0
    min_8bit_size: Smallest8Bit = 4096
    percentile_clipping: PercentileClipping = 100
    block_wise: BlockWise = True
    is_paged: Paged = False


SPEC = OptimizerSpec(
    settings=Lion8bit,
    label="Lion 8-bit",
    rates=SIGN_RATES,
    state_bytes=per_weight(1.05),
    needs_gpu=True,
)
