"""What the optimizers of bitsandbytes share: their package, the fields of 8-bit state, and the size of the state."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from modules.optim.spec import Shape
from modules.optim.terms.general import advanced
from modules.settings.field import When
from modules.system.package import Package

BITSANDBYTES = Package("bitsandbytes", extra="cuda")
_BLOCK = 256  # weights that share a scale

IN_8_BITS = When("optim_bits", ("8",))
IN_32_BITS = When("optim_bits", ("32",))

_SMALLEST = {
    "label": "Min 8-bit size",
    "explanation": "Tensors with fewer weights keep their state in 32 bits.",
    "unit": "weights",
}
Smallest8Bit = Annotated[int, Ge(0), Le(1_000_000_000), advanced(**_SMALLEST)]
Smallest8BitOf32 = Annotated[int, Ge(0), Le(1_000_000_000), advanced(**_SMALLEST, applies_when=IN_8_BITS)]
StateBits = Annotated[
    Literal["32", "8"],
    advanced(
        "Optimizer state bits",
        "The precision of the optimizer state: 8 bits need a quarter of the memory, and the package bitsandbytes.",
        choice_labels={"32": "32 bits", "8": "8 bits"},
    ),
]
LargestUpdate = Annotated[
    float,
    Ge(0),
    Le(1000),
    advanced(
        "Max update",
        "The largest update of a weight tensor, as a fraction of its norm; 0 sets no limit. Tensors with 8-bit state "
        "have none.",
    ),
]


def in_8_bits(settings: Any) -> bool:
    """Return whether settings with `StateBits` choose 8 bits: the optimizer is then that of bitsandbytes."""
    return bool(settings.optim_bits == "8")


def bits_state_bytes(num_arrays: int, shape: Shape, *, bits: str = "8", min_8bit_size: int = 0) -> float:
    """Return the bytes of a weight's state: arrays of its size in 32 bits, or in 8 bits with a scale for each block.

    The tables of the 256 values of 8 bits are not included: all weights share them.
    """
    size = math.prod(shape)
    if bits == "32" or size < min_8bit_size:
        return 4.0 * num_arrays * size
    return float(num_arrays * (size + 4 * math.ceil(size / _BLOCK)))
