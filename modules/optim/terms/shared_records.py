"""Settings and records that several optimizers share: 8-bit state, and the records of two packages."""

import math
from collections.abc import Callable
from typing import Any

from modules.optim.spec import OptimizerSpec, Shape, always
from modules.optim.terms import fields
from modules.system.factories import Package

BITSANDBYTES = Package("bitsandbytes")
_BLOCK = 256  # weights that share a scale


class EightBitAdam(fields.AdamFields):
    """The settings of Adam with 8-bit state, and of optimizers with the same ones."""

    min_8bit_size: fields.Smallest8Bit = 4096
    fused_back_pass: fields.FusedBackPass = False


def in_8_bits(settings: Any) -> bool:
    """Return whether the state is in 8 bits, which it always is without `StateBits`: bitsandbytes then steps."""
    return getattr(settings, "optim_bits", "8") == "8"


def bits_state(num_arrays: int | Callable[[Any], int], *, has_norm: bool = False) -> Callable[[Any, Shape], float]:
    """Return the `state_bytes` function of an optimizer with arrays of a weight's size in 32 or 8 bits.

    The number may depend on the settings. Weights below the smallest size have 32; in 8 bits each block has a scale.
    The tables of the 256 values of 8 bits are not included: all weights share them. `has_norm`: where updates are
    limited, the state has the norm of the update, too.
    """

    def state_bytes(settings: Any, shape: Shape) -> float:
        size = math.prod(shape)
        norm = 4.0 if has_norm and getattr(settings, "max_unorm", True) else 0.0
        number = num_arrays(settings) if callable(num_arrays) else num_arrays
        if not in_8_bits(settings) or size < settings.min_8bit_size:
            return 4.0 * number * size + norm
        return number * (size + 4.0 * math.ceil(size / _BLOCK)) + norm

    return state_bytes


OF_BITS: dict[str, Any] = {
    "waits_per_weight": in_8_bits,
    "reads_memory_in_order": in_8_bits,
    "more_packages": lambda settings: (BITSANDBYTES,) if in_8_bits(settings) else (),
}
"""The facts of an optimizer with `StateBits` that is bitsandbytes' with 8 bits alone."""


def bitsandbytes_spec(
    settings: type[Any], label: str, name: str, num_arrays: int, *, has_norm: bool = False, **facts: Any
) -> OptimizerSpec[Any]:
    """Return the record of a class of bitsandbytes, whose steps all wait at each weight and read it in order.

    `num_arrays` and `has_norm` describe its state, as in `bits_state`.
    """
    return OptimizerSpec(
        settings,
        label,
        f"bitsandbytes:optim.{name}",
        state_bytes=bits_state(num_arrays, has_norm=has_norm),
        waits_per_weight=always,
        reads_memory_in_order=always,
        **facts,
    )


def eight_bits_of(
    full: OptimizerSpec[Any], settings: type[Any], name: str, num_arrays: int, **facts: Any
) -> OptimizerSpec[Any]:
    """Return the record of the class of bitsandbytes with the 8-bit state of an optimizer, and its usual rates."""
    return bitsandbytes_spec(settings, f"{full.label} 8-bit", name, num_arrays, rates=full.rates, **facts)


def pytorch_optimizer_spec(settings: type[Any], label: str, **facts: Any) -> OptimizerSpec[Any]:
    """Return the record of an optimizer of the package pytorch-optimizer; its factory has the name in files."""
    return OptimizerSpec(
        settings,
        label,
        f"modules.optim.classes.counting_by_weight:{settings.model_fields['name'].default}",
        packages=(Package("pytorch_optimizer", distribution="pytorch-optimizer"),),
        **facts,
    )
