"""LAMB (You et al. 2020): Adam for very large batches, with updates limited by the norm of each weight tensor."""

from __future__ import annotations

from typing import Any, Literal

from modules.optim.spec import LARGER_RATES, OptimizerSettings, OptimizerSpec, Shape, always
from modules.optim.terms.bits import BITSANDBYTES, LargestUpdate, Smallest8BitOf32, StateBits, bits_state_bytes
from modules.optim.terms.general import Beta1, Beta2, Epsilon, FusedBackPass, WeightDecay
from modules.optim.terms.removed import (
    ALWAYS_BLOCKS,
    ALWAYS_CORRECTED,
    ALWAYS_DECOUPLED,
    NO_AMSGRAD,
    PERCENTILE_CLIPPING,
)


class Lamb(OptimizerSettings):
    """LAMB (You et al. 2020): Adam for very large batches, with updates limited by the norm of each weight tensor."""

    name: Literal["lamb"] = "lamb"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    optim_bits: StateBits = "32"
    min_8bit_size: Smallest8BitOf32 = 4096
    max_unorm: LargestUpdate = 1.0
    fused_back_pass: FusedBackPass = False


def _arguments(settings: Lamb) -> dict[str, Any]:
    return {
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
        "optim_bits": int(settings.optim_bits),
        "min_8bit_size": settings.min_8bit_size,
        "max_unorm": settings.max_unorm,
    }


def _state_bytes(settings: Lamb, shape: Shape) -> float:
    """The averages of gradients and of their squares, and the norm of the update."""
    averages = bits_state_bytes(2, shape, bits=settings.optim_bits, min_8bit_size=settings.min_8bit_size)
    return averages + (4.0 if settings.max_unorm else 0.0)


SPEC = OptimizerSpec(
    settings=Lamb,
    label="LAMB",
    factory="bitsandbytes:optim.LAMB",
    arguments=_arguments,
    rates=LARGER_RATES,
    state_bytes=_state_bytes,
    waits_per_weight=always,
    reads_memory_in_order=always,
    packages=(BITSANDBYTES,),
    leaves_zeros=lambda settings: settings.max_unorm > 0,
    removed={
        "bias_correction": ALWAYS_CORRECTED,
        "amsgrad": NO_AMSGRAD,
        "adam_w_mode": ALWAYS_DECOUPLED,
        "percentile_clipping": PERCENTILE_CLIPPING,
        "block_wise": ALWAYS_BLOCKS,
    },
)
