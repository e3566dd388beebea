"""Fields that several related optimizers share, and the parts of records of bitsandbytes' optimizers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval, Le, Lt

from modules.optim.spec import OptimizerSettings, OptimizerSpec, Shape, always
from modules.optim.terms.general import MOMENTUM, Beta1, Beta2, Epsilon, FusedBackPass, WeightDecay
from modules.settings.field import Setting, When, advanced_setting
from modules.system.factories import Package

BITSANDBYTES = Package("bitsandbytes")
_BLOCK = 256  # weights that share a scale

IN_8_BITS = When("optim_bits", ("8",))
IN_32_BITS = When("optim_bits", ("32",))

_SMALLEST = {
    "label": "Min 8-bit size",
    "help": "Tensors with fewer weights keep their state in 32 bits.",
    "unit": "weights",
}
Smallest8Bit = Annotated[int, Ge(0), Le(1_000_000_000), advanced_setting(**_SMALLEST)]
Smallest8BitOf32 = Annotated[int, Ge(0), Le(1_000_000_000), advanced_setting(**_SMALLEST, applies_when=IN_8_BITS)]
StateBits = Annotated[
    Literal["32", "8"],
    advanced_setting(
        "Optimizer state bits",
        "The precision of the optimizer state: 8 bits need a quarter of the memory, and the package bitsandbytes.",
        choice_labels={"32": "32 bits", "8": "8 bits"},
    ),
]
LargestUpdate = Annotated[
    float,
    *Interval(ge=0, le=1000),
    advanced_setting(
        "Max update",
        "The largest update of a weight tensor, as a fraction of its norm; 0 sets no limit. Tensors with 8-bit state "
        "have none.",
    ),
]


class EightBitAdam(OptimizerSettings):
    """The settings of Adam with 8-bit state, and of optimizers with the same ones."""

    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    min_8bit_size: Smallest8Bit = 4096
    fused_back_pass: FusedBackPass = False


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


PYTORCH_OPTIMIZER = Package("pytorch_optimizer", distribution="pytorch-optimizer")

SlowMeanBeta = Annotated[
    float,
    *Interval(ge=0, lt=1),
    advanced_setting("Beta 3", "Decay of the slow average of gradients: 0.9999 averages about 10,000 steps."),
]
Rectify = Annotated[
    bool,
    advanced_setting("Rectify", "Reduces the first steps while the variance estimate is unreliable (Liu et al. 2020)."),
]
PlainWhileUnsure = Annotated[
    bool,
    advanced_setting(
        "Degenerate to SGD",
        "Uses SGD steps while the variance estimate is unreliable; without it these steps are skipped.",
        applies_when=When("rectify", (True,)),
    ),
]
NormMean = Annotated[
    float,
    *Interval(ge=0, le=1),
    advanced_setting(
        "AdaNorm decay (r)", "Decay of the average of gradient norms.", applies_when=When("adanorm", (True,))
    ),
]
AdaNorm = Annotated[bool, advanced_setting("AdaNorm", "Scales unusually small gradients up to their average norm.")]
AdamDebias = Annotated[bool, advanced_setting("Adam debias", "Corrects the bias of the squared-gradient average only.")]
AveragePower = Annotated[
    float,
    *Interval(ge=0, le=100),
    advanced_setting(
        "Averaging power (r)", "How much more later steps weigh in the average; 0 weighs all steps equally."
    ),
]
RatePower = Annotated[
    float,
    *Interval(ge=0, le=100),
    advanced_setting(
        "Weight LR power", "The power of the learning rate that weighs each step of the warm-up in the average."
    ),
]
RateDecay = Annotated[
    float,
    *Interval(ge=0, le=10),
    advanced_setting(
        "Learning rate decay", "Lowers the learning rate a little with every step.", applies_when=IN_32_BITS
    ),
]
FirstSum = Annotated[
    float,
    *Interval(ge=0, le=1000),
    advanced_setting(
        "Initial accumulator value",
        "The start value of the sum of squared gradients: a larger value makes the first steps smaller.",
        applies_when=IN_32_BITS,
    ),
]
MomentumIn32Bits = Annotated[float, Ge(0), Lt(1), replace(MOMENTUM, applies_when=IN_32_BITS)]
Centered = Annotated[
    bool,
    advanced_setting(
        "Centered", "Divides by the variance of the gradients instead of their mean square.", applies_when=IN_32_BITS
    ),
]
PositiveSmoothing = Annotated[
    float, Gt(0), Lt(1), advanced_setting("Alpha", "Decay of the running average of squared gradients.")
]
PositiveMomentum = Annotated[
    float, Gt(0), Lt(1), Setting("Momentum", "Decay of the running sum of gradients: 0.9 averages about 10 steps.")
]
PositiveBeta1 = Annotated[
    float,
    *Interval(gt=0, lt=1),
    advanced_setting("Beta 1", "Where gradients are computed, between the newest weights (0) and their average (1)."),
]
