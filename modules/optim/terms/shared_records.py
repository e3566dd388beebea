"""Settings and records that several optimizers share: Adam's fields, 8-bit state, and the records of two packages."""

import math
from collections.abc import Callable
from typing import Any

from modules.optim.spec import OptimizerSettings, OptimizerSpec, Shape, always
from modules.optim.terms import fields
from modules.system.factories import Package

BITSANDBYTES = Package("bitsandbytes")
_BLOCK = 256  # weights that share a scale


class AdamFields(OptimizerSettings):
    """The settings that Adam shares with optimizers like it."""

    beta1: fields.Beta1 = 0.9
    beta2: fields.Beta2 = 0.999
    eps: fields.Epsilon = 1e-8
    weight_decay: fields.WeightDecay = 0.0


class EightBitAdam(AdamFields):
    """The settings of Adam with 8-bit state, and of optimizers with the same ones."""

    min_8bit_size: fields.Smallest8Bit = 4096
    fused_back_pass: fields.FusedBackPass = False


def in_8_bits(settings: Any) -> bool:
    """Return whether settings with `StateBits` choose 8 bits: the optimizer is then bitsandbytes'."""
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
    settings: type[Any], label: str, name: str, num_arrays: int, *, has_norm: bool = False, **facts: Any
) -> OptimizerSpec[Any]:
    """Return the record of a class of bitsandbytes, whose steps all wait at each weight and read it in order.

    `num_arrays` and `has_norm` describe its state, as in `bits_state`.
    """
    return OptimizerSpec(
        settings=settings,
        label=label,
        factory=f"bitsandbytes:optim.{name}",
        state_bytes=bits_state(num_arrays, has_norm=has_norm),
        waits_per_weight=always,
        reads_memory_in_order=always,
        packages=(BITSANDBYTES,),
        **facts,
    )


def pytorch_optimizer_spec(settings: type[Any], label: str, **facts: Any) -> OptimizerSpec[Any]:
    """Return the record of an optimizer of the package pytorch-optimizer; its factory has the name in files."""
    return OptimizerSpec(
        settings=settings,
        label=label,
        factory=f"modules.optim.classes.counting_by_weight:{settings.model_fields['name'].default}",
        packages=(Package("pytorch_optimizer", distribution="pytorch-optimizer"),),
        **facts,
    )
