"""AdEMAMix with 8-bit state."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import OptimizerSettings, OptimizerSpec, per_weight
from modules.optim.terms.general import Beta1, Beta2, EmaAlpha, Epsilon, Paged, Smallest8Bit, WeightDecay
from modules.optim.terms.kin import SlowMeanBeta


class AdEMAMix8bit(OptimizerSettings):
    """AdEMAMix with 8-bit state."""

    name: Literal["ademamix_8bit"] = "ademamix_8bit"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    beta3: SlowMeanBeta = 0.9999
    eps: Epsilon = 1e-8
    alpha: EmaAlpha = 5.0
    weight_decay: WeightDecay = 0.01
    min_8bit_size: Smallest8Bit = 4096
    is_paged: Paged = False


SPEC = OptimizerSpec(
    settings=AdEMAMix8bit,
    label="AdEMAMix 8-bit",
    state_bytes=per_weight(2.1),
    needs_gpu=True,
)
