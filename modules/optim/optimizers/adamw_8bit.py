"""AdamW with 8-bit state (Dettmers et al. 2022)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from modules.optim.spec import OptimizerSettings, OptimizerSpec, Shape
from modules.optim.terms.general import (
    AMSGRAD,
    BLOCK_WISE,
    PAGED,
    PERCENTILE_CLIPPING,
    STATE_BITS,
    Beta1,
    Beta2,
    Epsilon,
    FusedBackPass,
    Smallest8Bit,
    WeightDecay,
)
from modules.system.package import Package

# bitsandbytes 0.50 always keeps this optimizer's state in 8 bits, block-wise, and has removed the other options; paged
# state cannot be restored from a backup.
AmsGradNotYet = Annotated[bool, replace(AMSGRAD, not_yet="refused")]
StateBitsIgnored = Annotated[Literal["32", "8"], replace(STATE_BITS, not_yet="ignored")]
PercentileClippingNotYet = Annotated[int, Ge(1), Le(100), replace(PERCENTILE_CLIPPING, not_yet="refused")]
BlockWiseOnly = Annotated[bool, replace(BLOCK_WISE, not_yet="refused")]
PagedNotYet = Annotated[bool, replace(PAGED, not_yet="refused")]


class AdamW8bit(OptimizerSettings):
    """AdamW with 8-bit state (Dettmers et al. 2022)."""

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


def _arguments(settings: AdamW8bit) -> dict[str, Any]:
    return {
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
        "min_8bit_size": settings.min_8bit_size,
    }


def _state_bytes(settings: AdamW8bit, shape: Shape) -> float:
    """Two averages of one byte each, with the scales of their blocks; small tensors keep theirs in 32 bits."""
    size = math.prod(shape)
    return (8.0 if size < settings.min_8bit_size else 2.1) * size


SPEC = OptimizerSpec(
    settings=AdamW8bit,
    label="AdamW 8-bit",
    needs_gpu=True,
    factory="bitsandbytes:optim.AdamW8bit",
    arguments=_arguments,
    state_bytes=_state_bytes,
    packages=(Package("bitsandbytes", extra="cuda"),),
)
