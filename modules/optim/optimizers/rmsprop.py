"""RMSprop (Hinton 2012): divides gradients by the root of their average square."""

from __future__ import annotations

import math
from typing import Any, Literal

from modules.optim.spec import OptimizerSettings, OptimizerSpec, Shape
from modules.optim.terms.bits import BITSANDBYTES, Smallest8BitOf32, StateBits, bits_state_bytes, in_8_bits
from modules.optim.terms.general import Epsilon, FusedBackPass, WeightDecay
from modules.optim.terms.kin import Centered, MomentumIn32Bits, PositiveSmoothing
from modules.optim.terms.removed import ALWAYS_BLOCKS, PERCENTILE_CLIPPING
from modules.system.package import Package


class RmsProp(OptimizerSettings):
    """RMSprop (Hinton 2012): divides gradients by the root of their average square."""

    name: Literal["rmsprop"] = "rmsprop"
    alpha: PositiveSmoothing = 0.99
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    momentum: MomentumIn32Bits = 0.0
    centered: Centered = False
    optim_bits: StateBits = "32"
    min_8bit_size: Smallest8BitOf32 = 4096
    fused_back_pass: FusedBackPass = False


def _arguments(settings: RmsProp) -> dict[str, Any]:
    return {
        "alpha": settings.alpha,
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
        "momentum": settings.momentum,
        "centered": settings.centered,
        "optim_bits": int(settings.optim_bits),
        "min_8bit_size": settings.min_8bit_size,
    }


def _state_bytes(settings: RmsProp, shape: Shape) -> float:
    if settings.optim_bits == "8":
        return bits_state_bytes(1, shape, min_8bit_size=settings.min_8bit_size)
    num_arrays = 1 + (settings.momentum > 0) + settings.centered
    return 4.0 * num_arrays * math.prod(shape)


def _packages(settings: RmsProp) -> tuple[Package, ...]:
    return (BITSANDBYTES,) if settings.optim_bits == "8" else ()


SPEC = OptimizerSpec(
    settings=RmsProp,
    label="RMSprop",
    factory="modules.optim.classes.eight_bit:rmsprop",
    library="torch",
    arguments=_arguments,
    state_bytes=_state_bytes,
    waits_per_weight=in_8_bits,
    reads_memory_in_order=in_8_bits,
    more_packages=_packages,
    removed={"percentile_clipping": PERCENTILE_CLIPPING, "block_wise": ALWAYS_BLOCKS},
)
