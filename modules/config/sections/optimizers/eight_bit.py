"""Adam and AdEMAMix with their state in 8 bits, as bitsandbytes has them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from annotated_types import Ge, Le, Lt

from modules.config.sections.optimizers.terms import (
    AMSGRAD,
    BLOCK_WISE,
    PAGED,
    PERCENTILE_CLIPPING,
    STATE_BITS,
    AmsGrad,
    Beta1,
    Beta2,
    BlockWise,
    EmaAlpha,
    Epsilon,
    FusedBackPass,
    Paged,
    PercentileClipping,
    Smallest8Bit,
    StateBits,
    WeightDecay,
    advanced,
)
from modules.settings.field import Section

SlowMeanBeta = Annotated[
    float,
    Ge(0),
    Lt(1),
    advanced("Beta 3", "How long the slow mean of gradients remembers: 0.9999 looks back ten thousand steps."),
]


# bitsandbytes keeps the state of this one in 8 bits, in blocks, and has dropped the rest (0.50); a paged state does not
# survive a backup.
AmsGradNotYet = Annotated[bool, replace(AMSGRAD, not_yet="refused")]
StateBitsIgnored = Annotated[Literal["32", "8"], replace(STATE_BITS, not_yet="ignored")]
PercentileClippingNotYet = Annotated[int, Ge(1), Le(100), replace(PERCENTILE_CLIPPING, not_yet="refused")]
BlockWiseOnly = Annotated[bool, replace(BLOCK_WISE, not_yet="refused")]
PagedNotYet = Annotated[bool, replace(PAGED, not_yet="refused")]


class AdamW8bit(Section):
    """AdamW with its state in 8 bits (Dettmers et al. 2022)."""

    name: Literal["adamw_8bit"] = "adamw_8bit"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.01
    amsgrad: AmsGradNotYet = False
    optim_bits: StateBitsIgnored = "32"
    min_8bit_size: Smallest8Bit = 4096
    percentile_clipping: PercentileClippingNotYet = 100
    block_wise: BlockWiseOnly = True
    is_paged: PagedNotYet = False
    fused_back_pass: FusedBackPass = False


class Adam8bit(Section):
    """Adam with its state in 8 bits (Dettmers et al. 2022)."""

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


class AdEMAMix(Section):
    """AdEMAMix (Pagliardini et al. 2024): a fast and a slow mean of gradients."""

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


class AdEMAMix8bit(Section):
    """AdEMAMix with its state in 8 bits."""

    name: Literal["ademamix_8bit"] = "ademamix_8bit"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    beta3: SlowMeanBeta = 0.9999
    eps: Epsilon = 1e-8
    alpha: EmaAlpha = 5.0
    weight_decay: WeightDecay = 0.01
    min_8bit_size: Smallest8Bit = 4096
    is_paged: Paged = False
