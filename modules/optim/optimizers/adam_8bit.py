"""Adam with 8-bit state (Dettmers et al. 2022)."""

from __future__ import annotations

from typing import Any, Literal

from modules.optim.spec import OptimizerSettings, OptimizerSpec, Shape, always
from modules.optim.terms.bits import BITSANDBYTES, Smallest8Bit, bits_state_bytes
from modules.optim.terms.general import Beta1, Beta2, Epsilon, FusedBackPass, WeightDecay
from modules.optim.terms.removed import ALWAYS_8_BITS, ALWAYS_BLOCKS, NO_AMSGRAD, PAGED, PERCENTILE_CLIPPING


class Adam8bit(OptimizerSettings):
    """Adam with 8-bit state (Dettmers et al. 2022)."""

    name: Literal["adam_8bit"] = "adam_8bit"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    min_8bit_size: Smallest8Bit = 4096
    fused_back_pass: FusedBackPass = False


def _arguments(settings: Adam8bit) -> dict[str, Any]:
    return {
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
        "min_8bit_size": settings.min_8bit_size,
    }


def _state_bytes(settings: Adam8bit, shape: Shape) -> float:
    """The averages of gradients and of their squares."""
    return bits_state_bytes(2, shape, min_8bit_size=settings.min_8bit_size)


SPEC = OptimizerSpec(
    settings=Adam8bit,
    label="Adam 8-bit",
    factory="bitsandbytes:optim.Adam8bit",
    arguments=_arguments,
    state_bytes=_state_bytes,
    waits_per_weight=always,
    reads_memory_in_order=always,
    packages=(BITSANDBYTES,),
    removed={
        "amsgrad": NO_AMSGRAD,
        "optim_bits": ALWAYS_8_BITS,
        "percentile_clipping": PERCENTILE_CLIPPING,
        "block_wise": ALWAYS_BLOCKS,
        "is_paged": PAGED,
    },
)
