"""AdEMAMix (Pagliardini et al. 2024): a fast and a slow running average of gradients."""

from __future__ import annotations

from typing import Literal

from modules.optim.spec import OptimizerSettings, OptimizerSpec, per_weight
from modules.optim.terms.general import Beta1, Beta2, EmaAlpha, Epsilon, Paged, Smallest8Bit, StateBits, WeightDecay
from modules.optim.terms.kin import SlowMeanBeta


class AdEMAMix(OptimizerSettings):
    """AdEMAMix (Pagliardini et al. 2024): a fast and a slow running average of gradients."""

    name: Literal["ademamix"] = "ademamix"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    beta3: SlowMeanBeta = 0.9999
    eps: Epsilon = 1e-8
    alpha: EmaAlpha = 5.0
    weight_decay: WeightDecay = 0.01
    optim_bits: StateBits = "32"
    min_8bit_size: Smallest8Bit = 4096
    is_paged: Paged = False


SPEC = OptimizerSpec(
    settings=AdEMAMix,
    label="AdEMAMix",
    state_bytes=per_weight(12.0),
)
