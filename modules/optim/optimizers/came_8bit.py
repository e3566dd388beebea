"""CAME with an 8-bit average of updates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from modules.optim.spec import DARKROOM, OptimizerSettings, OptimizerSpec, Shape, always
from modules.optim.terms.bits import BITSANDBYTES, Smallest8Bit
from modules.optim.terms.general import Beta1, Beta2, Epsilon, Epsilon2, FusedBackPass, WeightDecay, advanced
from modules.optim.terms.kin import InstabilityBeta, came_arguments, came_state_bytes
from modules.system.problem import Problem

_SIZES = (64, 128, 256, 512, 1024, 2048, 4096)  # of bitsandbytes' kernels
BlockSize = Annotated[
    int,
    Ge(1),
    Le(1_000_000),
    advanced(
        "Block size", "How many values of the 8-bit state share a scale: a power of 2, 64 to 4096.", unit="weights"
    ),
]


class Came8bit(OptimizerSettings):
    """CAME with an 8-bit average of updates."""

    name: Literal["came_8bit"] = "came_8bit"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    beta3: InstabilityBeta = 0.9999
    eps: Epsilon = 1e-30
    eps2: Epsilon2 = 1e-16
    weight_decay: WeightDecay = 0.01
    fused_back_pass: FusedBackPass = False
    min_8bit_size: Smallest8Bit = 16384
    quant_block_size: BlockSize = 2048


def _arguments(settings: Came8bit) -> dict[str, Any]:
    return {
        **came_arguments(settings),
        "min_8bit_size": settings.min_8bit_size,
        "block_size": settings.quant_block_size,
    }


def _state_bytes(settings: Came8bit, shape: Shape) -> float:
    return came_state_bytes(shape, min_8bit_size=settings.min_8bit_size, block_size=settings.quant_block_size)


def _problems(settings: Came8bit) -> Iterator[Problem]:
    if settings.quant_block_size not in _SIZES:
        sizes = ", ".join(map(str, _SIZES[:-1]))
        message = f"bitsandbytes does not quantize in blocks of {settings.quant_block_size} values."
        yield Problem("quant_block_size", message, "error", f"Set the block size to {sizes} or {_SIZES[-1]}.")


SPEC = OptimizerSpec(
    settings=Came8bit,
    label="CAME 8-bit",
    factory="modules.optim.classes.came:Came",
    library=DARKROOM,
    arguments=_arguments,
    state_bytes=_state_bytes,
    packages=(BITSANDBYTES,),
    reads_memory_in_order=always,
    problems=_problems,
)
