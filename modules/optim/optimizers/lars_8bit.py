"""LARS with 8-bit momentum. bitsandbytes limits only updates of tensors with 32-bit state; others step as in SGD."""

from __future__ import annotations

from typing import Any, Literal

from modules.optim.spec import PLAIN_RATES, OptimizerSettings, OptimizerSpec, Shape, always
from modules.optim.terms.bits import BITSANDBYTES, LargestUpdate, Smallest8Bit, bits_state_bytes
from modules.optim.terms.general import FusedBackPass, WeightDecay
from modules.optim.terms.kin import PositiveMomentum
from modules.optim.terms.removed import NO_DAMPENING, NO_NESTEROV, PERCENTILE_CLIPPING


class Lars8bit(OptimizerSettings):
    """LARS with 8-bit momentum: the norm of a weight tensor limits its updates only where the state has 32 bits."""

    name: Literal["lars_8bit"] = "lars_8bit"
    momentum: PositiveMomentum = 0.9
    weight_decay: WeightDecay = 0.0
    min_8bit_size: Smallest8Bit = 4096
    max_unorm: LargestUpdate = 0.02
    fused_back_pass: FusedBackPass = False


def _arguments(settings: Lars8bit) -> dict[str, Any]:
    return {
        "lr": 1.0,  # each group has its own
        "momentum": settings.momentum,
        "weight_decay": settings.weight_decay,
        "min_8bit_size": settings.min_8bit_size,
        "max_unorm": settings.max_unorm,
    }


def _state_bytes(settings: Lars8bit, shape: Shape) -> float:
    """The momentum, and the norm of the update."""
    momentum = bits_state_bytes(1, shape, min_8bit_size=settings.min_8bit_size)
    return momentum + (4.0 if settings.max_unorm else 0.0)


SPEC = OptimizerSpec(
    settings=Lars8bit,
    label="LARS 8-bit",
    factory="bitsandbytes:optim.LARS8bit",
    arguments=_arguments,
    rates=PLAIN_RATES,
    state_bytes=_state_bytes,
    waits_per_weight=always,
    reads_memory_in_order=always,
    packages=(BITSANDBYTES,),
    leaves_zeros=lambda settings: settings.max_unorm > 0,
    removed={"dampening": NO_DAMPENING, "nesterov": NO_NESTEROV, "percentile_clipping": PERCENTILE_CLIPPING},
)
