"""SGD with 8-bit momentum."""

from __future__ import annotations

from typing import Any, Literal

from modules.optim.spec import PLAIN_RATES, OptimizerSettings, OptimizerSpec, Shape
from modules.optim.terms.bits import BITSANDBYTES, Smallest8Bit, bits_state_bytes
from modules.optim.terms.general import FusedBackPass, Momentum, WeightDecay
from modules.optim.terms.removed import ALWAYS_BLOCKS, NO_DAMPENING, NO_NESTEROV, PERCENTILE_CLIPPING


class Sgd8bit(OptimizerSettings):
    """SGD with 8-bit momentum."""

    name: Literal["sgd_8bit"] = "sgd_8bit"
    momentum: Momentum = 0.0
    weight_decay: WeightDecay = 0.0
    min_8bit_size: Smallest8Bit = 4096
    fused_back_pass: FusedBackPass = False


def _arguments(settings: Sgd8bit) -> dict[str, Any]:
    return {
        "momentum": settings.momentum,
        "weight_decay": settings.weight_decay,
        "min_8bit_size": settings.min_8bit_size,
    }


def _state_bytes(settings: Sgd8bit, shape: Shape) -> float:
    return bits_state_bytes(1, shape, min_8bit_size=settings.min_8bit_size) if settings.momentum else 0.0


SPEC = OptimizerSpec(
    settings=Sgd8bit,
    label="SGD 8-bit",
    factory="modules.optim.classes.eight_bit:sgd",
    library="torch",
    arguments=_arguments,
    rates=PLAIN_RATES,
    state_bytes=_state_bytes,
    waits_per_weight=lambda settings: settings.momentum > 0,
    reads_memory_in_order=lambda settings: settings.momentum > 0,
    packages=(BITSANDBYTES,),
    removed={
        "dampening": NO_DAMPENING,
        "nesterov": NO_NESTEROV,
        "percentile_clipping": PERCENTILE_CLIPPING,
        "block_wise": ALWAYS_BLOCKS,
    },
)
