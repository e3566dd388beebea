"""AdaGrad with 8-bit state."""

from __future__ import annotations

from typing import Any, Literal

from modules.optim.spec import LARGER_RATES, OptimizerSettings, OptimizerSpec, Shape, always
from modules.optim.terms.bits import BITSANDBYTES, Smallest8Bit, bits_state_bytes
from modules.optim.terms.general import Epsilon, FusedBackPass, WeightDecay
from modules.optim.terms.removed import (
    ALWAYS_8_BITS,
    ALWAYS_BLOCKS,
    NO_FIRST_SUM,
    NO_RATE_DECAY,
    PERCENTILE_CLIPPING,
)


class Adagrad8bit(OptimizerSettings):
    """AdaGrad with 8-bit state."""

    name: Literal["adagrad_8bit"] = "adagrad_8bit"
    weight_decay: WeightDecay = 0.0
    eps: Epsilon = 1e-10
    min_8bit_size: Smallest8Bit = 4096
    fused_back_pass: FusedBackPass = False


def _arguments(settings: Adagrad8bit) -> dict[str, Any]:
    return {
        "weight_decay": settings.weight_decay,
        "eps": settings.eps,
        "min_8bit_size": settings.min_8bit_size,
    }


def _state_bytes(settings: Adagrad8bit, shape: Shape) -> float:
    return bits_state_bytes(1, shape, min_8bit_size=settings.min_8bit_size)


SPEC = OptimizerSpec(
    settings=Adagrad8bit,
    label="AdaGrad 8-bit",
    factory="bitsandbytes:optim.Adagrad8bit",
    arguments=_arguments,
    rates=LARGER_RATES,
    state_bytes=_state_bytes,
    waits_per_weight=always,
    reads_memory_in_order=always,
    packages=(BITSANDBYTES,),
    removed={
        "lr_decay": NO_RATE_DECAY,
        "initial_accumulator_value": NO_FIRST_SUM,
        "optim_bits": ALWAYS_8_BITS,
        "percentile_clipping": PERCENTILE_CLIPPING,
        "block_wise": ALWAYS_BLOCKS,
    },
)
