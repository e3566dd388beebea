"""LARS (You et al. 2017): SGD for very large batches, with updates limited by the norm of each weight tensor."""

from __future__ import annotations

from typing import Any, Literal

from modules.optim.spec import PLAIN_RATES, OptimizerSettings, OptimizerSpec, Shape, always
from modules.optim.terms.bits import BITSANDBYTES, LargestUpdate, Smallest8BitOf32, StateBits, bits_state_bytes
from modules.optim.terms.general import FusedBackPass, WeightDecay
from modules.optim.terms.kin import PositiveMomentum
from modules.optim.terms.removed import NO_DAMPENING, NO_NESTEROV, PERCENTILE_CLIPPING


class Lars(OptimizerSettings):
    """LARS (You et al. 2017): SGD for very large batches, with updates limited by the norm of each weight tensor."""

    name: Literal["lars"] = "lars"
    momentum: PositiveMomentum = 0.9
    weight_decay: WeightDecay = 0.0
    optim_bits: StateBits = "32"
    min_8bit_size: Smallest8BitOf32 = 4096
    max_unorm: LargestUpdate = 0.02
    fused_back_pass: FusedBackPass = False


def _arguments(settings: Lars) -> dict[str, Any]:
    return {
        "lr": 1.0,  # each group has its own
        "momentum": settings.momentum,
        "weight_decay": settings.weight_decay,
        "optim_bits": int(settings.optim_bits),
        "min_8bit_size": settings.min_8bit_size,
        "max_unorm": settings.max_unorm,
    }


def _state_bytes(settings: Lars, shape: Shape) -> float:
    """The momentum, and the norm of the update."""
    momentum = bits_state_bytes(1, shape, bits=settings.optim_bits, min_8bit_size=settings.min_8bit_size)
    return momentum + (4.0 if settings.max_unorm else 0.0)


SPEC = OptimizerSpec(
    settings=Lars,
    label="LARS",
    factory="bitsandbytes:optim.LARS",
    arguments=_arguments,
    rates=PLAIN_RATES,
    state_bytes=_state_bytes,
    waits_per_weight=always,
    reads_memory_in_order=always,
    packages=(BITSANDBYTES,),
    leaves_zeros=lambda settings: settings.max_unorm > 0,
    removed={"dampening": NO_DAMPENING, "nesterov": NO_NESTEROV, "percentile_clipping": PERCENTILE_CLIPPING},
)
