"""What the optimizers of bitsandbytes share: their package, the fields of 8-bit state, and the size of the state."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from modules.optim.spec import OptimizerSpec, Shape, always
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


def packages_of_bits(settings: Any) -> tuple[Package, ...]:
    """Return the packages that settings with `StateBits` need."""
    return (BITSANDBYTES,) if in_8_bits(settings) else ()


def bits_state(num_arrays: int, *, has_norm: bool = False) -> Callable[[Any, Shape], float]:
    """Return the `state_bytes` function of an optimizer with arrays of a weight's size in 32 or 8 bits.

    Settings without `StateBits` have 8. Weights below the smallest size have 32; in 8 bits each block has a scale. The
    tables of the 256 values of 8 bits are not included: all weights share them. `has_norm`: where updates are limited,
    the state has the norm of the update, too.
    """

    def state_bytes(settings: Any, shape: Shape) -> float:
        size = math.prod(shape)
        norm = 4.0 if has_norm and getattr(settings, "max_unorm", True) else 0.0
        if getattr(settings, "optim_bits", "8") == "32" or size < settings.min_8bit_size:
            return 4.0 * num_arrays * size + norm
        return num_arrays * (size + 4.0 * math.ceil(size / _BLOCK)) + norm

    return state_bytes


def bitsandbytes_spec(
    settings: type[Any], label: str, name: str, state_bytes: Callable[[Any, Shape], float], **facts: Any
) -> OptimizerSpec[Any]:
    """Return the record of a class of bitsandbytes, whose steps all wait at each weight and read it in order."""
    return OptimizerSpec(
        settings=settings,
        label=label,
        factory=f"bitsandbytes:optim.{name}",
        state_bytes=state_bytes,
        waits_per_weight=always,
        reads_memory_in_order=always,
        packages=(BITSANDBYTES,),
        **facts,
    )
