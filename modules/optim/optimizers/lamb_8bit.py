"""LAMB with 8-bit state. bitsandbytes limits only the updates of tensors with 32-bit state; others step as in Adam."""

from __future__ import annotations

from typing import Any, Literal

from modules.optim.spec import LARGER_RATES, OptimizerSettings, OptimizerSpec, Shape, always
from modules.optim.terms.bits import BITSANDBYTES, Smallest8Bit, bits_state_bytes
from modules.optim.terms.general import Beta1, Beta2, Epsilon, FusedBackPass, WeightDecay
from modules.optim.terms.removed import (
    ALWAYS_BLOCKS,
    ALWAYS_CORRECTED,
    ALWAYS_DECOUPLED,
    NO_AMSGRAD,
    NO_LIMIT,
    PERCENTILE_CLIPPING,
)


class Lamb8bit(OptimizerSettings):
    """LAMB with 8-bit state: the norm of a weight tensor limits its updates only where the state has 32 bits."""

    name: Literal["lamb_8bit"] = "lamb_8bit"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    min_8bit_size: Smallest8Bit = 4096
    fused_back_pass: FusedBackPass = False


def _arguments(settings: Lamb8bit) -> dict[str, Any]:
    return {
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
        "min_8bit_size": settings.min_8bit_size,
    }


def _state_bytes(settings: Lamb8bit, shape: Shape) -> float:
    """The averages of gradients and of their squares, and the norm of the update."""
    return bits_state_bytes(2, shape, min_8bit_size=settings.min_8bit_size) + 4.0


SPEC = OptimizerSpec(
    settings=Lamb8bit,
    label="LAMB 8-bit",
    factory="bitsandbytes:optim.LAMB8bit",
    arguments=_arguments,
    rates=LARGER_RATES,
    state_bytes=_state_bytes,
    waits_per_weight=always,
    reads_memory_in_order=always,
    packages=(BITSANDBYTES,),
    leaves_zeros=always,
    removed={
        "bias_correction": ALWAYS_CORRECTED,
        "amsgrad": NO_AMSGRAD,
        "adam_w_mode": ALWAYS_DECOUPLED,
        "percentile_clipping": PERCENTILE_CLIPPING,
        "block_wise": ALWAYS_BLOCKS,
        "max_unorm": NO_LIMIT,
    },
)
