"""RMSprop with 8-bit state."""

from __future__ import annotations

from typing import Any, Literal

from modules.optim.spec import OptimizerSettings, OptimizerSpec, Shape, always
from modules.optim.terms.bits import BITSANDBYTES, Smallest8Bit, bits_state_bytes
from modules.optim.terms.general import Epsilon, FusedBackPass, WeightDecay
from modules.optim.terms.kin import PositiveSmoothing
from modules.optim.terms.removed import ALWAYS_BLOCKS, NO_CENTERING, NO_MOMENTUM, PERCENTILE_CLIPPING


class RmsProp8bit(OptimizerSettings):
    """RMSprop with 8-bit state."""

    name: Literal["rmsprop_8bit"] = "rmsprop_8bit"
    alpha: PositiveSmoothing = 0.99
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    min_8bit_size: Smallest8Bit = 4096
    fused_back_pass: FusedBackPass = False


def _arguments(settings: RmsProp8bit) -> dict[str, Any]:
    return {
        "alpha": settings.alpha,
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
        "min_8bit_size": settings.min_8bit_size,
    }


def _state_bytes(settings: RmsProp8bit, shape: Shape) -> float:
    return bits_state_bytes(1, shape, min_8bit_size=settings.min_8bit_size)


SPEC = OptimizerSpec(
    settings=RmsProp8bit,
    label="RMSprop 8-bit",
    factory="bitsandbytes:optim.RMSprop8bit",
    arguments=_arguments,
    state_bytes=_state_bytes,
    waits_per_weight=always,
    reads_memory_in_order=always,
    packages=(BITSANDBYTES,),
    removed={
        "momentum": NO_MOMENTUM,
        "centered": NO_CENTERING,
        "percentile_clipping": PERCENTILE_CLIPPING,
        "block_wise": ALWAYS_BLOCKS,
    },
)
