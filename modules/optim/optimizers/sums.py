"""SGD, RMSprop and AdaGrad: momentum or squares of gradients alone, with state of 32 or 8 bits."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

from annotated_types import Gt, Interval, Lt

from modules.optim.spec import LARGER_RATES, PLAIN_RATES, OptimizerSettings, OptimizerSpec, Shape
from modules.optim.terms import fields, removed
from modules.optim.terms.fields import IN_32_BITS
from modules.optim.terms.removed import RemovedSetting
from modules.optim.terms.shared_records import BITSANDBYTES, bits_state, bitsandbytes_spec, in_8_bits, packages_of_bits
from modules.settings.field import advanced_setting
from modules.settings.shared_types import Decay, Fraction, UpTo1000
from modules.system.problem import Problem


class Sgd(OptimizerSettings):
    """Stochastic gradient descent, with optional momentum."""

    name: Literal["sgd"] = "sgd"
    momentum: fields.Momentum = 0.0
    dampening: Annotated[
        Fraction, advanced_setting("Dampening", "The fraction of each new gradient that is left out of the momentum.")
    ] = 0.0
    weight_decay: fields.WeightDecay = 0.0
    nesterov: fields.Nesterov = False
    foreach: fields.Foreach = False
    maximize: fields.Maximize = False
    fused_back_pass: fields.FusedBackPass = False


class Sgd8bit(OptimizerSettings):
    """SGD with 8-bit momentum."""

    name: Literal["sgd_8bit"] = "sgd_8bit"
    momentum: fields.Momentum = 0.0
    weight_decay: fields.WeightDecay = 0.0
    min_8bit_size: fields.Smallest8Bit = 4096
    fused_back_pass: fields.FusedBackPass = False


class _RmsPropFields(OptimizerSettings):
    alpha: Annotated[
        float, Gt(0), Lt(1), advanced_setting("Alpha", "Decay of the running average of squared gradients.")
    ] = 0.99
    eps: fields.Epsilon = 1e-8
    weight_decay: fields.WeightDecay = 0.0


class RmsProp(_RmsPropFields):
    """RMSprop (Hinton 2012): divides gradients by the root of their average square."""

    name: Literal["rmsprop"] = "rmsprop"
    momentum: Annotated[Decay, replace(fields.MOMENTUM, applies_when=IN_32_BITS)] = 0.0
    centered: Annotated[
        bool,
        advanced_setting(
            "Centered",
            "Divides by the variance of the gradients instead of their mean square.",
            applies_when=IN_32_BITS,
        ),
    ] = False
    optim_bits: fields.StateBits = "32"
    min_8bit_size: fields.Smallest8BitOf32 = 4096
    fused_back_pass: fields.FusedBackPass = False


class RmsProp8bit(_RmsPropFields):
    """RMSprop with 8-bit state."""

    name: Literal["rmsprop_8bit"] = "rmsprop_8bit"
    min_8bit_size: fields.Smallest8Bit = 4096
    fused_back_pass: fields.FusedBackPass = False


class Adagrad(OptimizerSettings):
    """AdaGrad (Duchi et al. 2011): the learning rate of each weight falls with its past gradients."""

    name: Literal["adagrad"] = "adagrad"
    lr_decay: Annotated[
        float,
        *Interval(ge=0, le=10),
        advanced_setting(
            "Learning rate decay", "Lowers the learning rate a little with every step.", applies_when=IN_32_BITS
        ),
    ] = 0.0
    weight_decay: fields.WeightDecay = 0.0
    initial_accumulator_value: Annotated[
        UpTo1000,
        advanced_setting(
            "Initial accumulator value",
            "The start value of the sum of squared gradients: a larger value makes the first steps smaller.",
            applies_when=IN_32_BITS,
        ),
    ] = 0.0
    eps: fields.Epsilon = 1e-10
    optim_bits: fields.StateBits = "32"
    min_8bit_size: fields.Smallest8BitOf32 = 4096
    fused_back_pass: fields.FusedBackPass = False


class Adagrad8bit(OptimizerSettings):
    """AdaGrad with 8-bit state."""

    name: Literal["adagrad_8bit"] = "adagrad_8bit"
    weight_decay: fields.WeightDecay = 0.0
    eps: fields.Epsilon = 1e-10
    min_8bit_size: fields.Smallest8Bit = 4096
    fused_back_pass: fields.FusedBackPass = False


def _sgd_problems(settings: Sgd) -> Iterator[Problem]:
    """Yield that Nesterov momentum needs a momentum above 0 without dampening."""
    if settings.nesterov and (settings.momentum == 0 or settings.dampening != 0):
        yield Problem(
            "nesterov",
            f"Nesterov momentum needs a momentum without dampening; momentum is {settings.momentum:g} and dampening "
            f"{settings.dampening:g}.",
            advice="Set the momentum to 0.9 and the dampening to 0, or switch Nesterov momentum off.",
        )


SGD = OptimizerSpec(
    settings=Sgd,
    label="SGD",
    rates=PLAIN_RATES,
    factory="torch.optim:SGD",
    is_elementwise=True,
    state_bytes=lambda settings, shape: (4.0 if settings.momentum else 0.0) * math.prod(shape),
    problems=_sgd_problems,
    removed={"differentiable": removed.DIFFERENTIABLE},
)


def _has_momentum(settings: Sgd8bit) -> bool:
    return settings.momentum > 0


# Without momentum there is no state, and torch's SGD steps.
SGD_8BIT = OptimizerSpec(
    settings=Sgd8bit,
    label="SGD 8-bit",
    factory="modules.optim.classes.eight_bit:sgd",
    library="torch",
    rates=PLAIN_RATES,
    state_bytes=lambda settings, shape: bits_state(1)(settings, shape) if settings.momentum else 0.0,
    waits_per_weight=_has_momentum,
    reads_memory_in_order=_has_momentum,
    packages=(BITSANDBYTES,),
    removed=removed.OF_BITSANDBYTES | removed.not_in_bitsandbytes(dampening=0, nesterov=False),
)


def _rmsprop_state_bytes(settings: RmsProp, shape: Shape) -> float:
    """In 8 bits there is neither momentum nor centering."""
    num_arrays = 1 if in_8_bits(settings) else 1 + (settings.momentum > 0) + settings.centered
    return bits_state(num_arrays)(settings, shape)


def _spec(
    settings: type[Any], label: str, name: str, state_bytes: Callable[[Any, Shape], float], **facts: Any
) -> OptimizerSpec[Any]:
    """Return the record of an optimizer that is torch's with 32 bits, and bitsandbytes' with 8."""
    return OptimizerSpec(
        settings=settings,
        label=label,
        factory=f"modules.optim.classes.eight_bit:{name}",
        library="torch",
        state_bytes=state_bytes,
        waits_per_weight=in_8_bits,
        reads_memory_in_order=in_8_bits,
        more_packages=packages_of_bits,
        removed=removed.OF_BITSANDBYTES,
        **facts,
    )


RMSPROP = _spec(RmsProp, "RMSprop", "rmsprop", _rmsprop_state_bytes)

RMSPROP_8BIT = bitsandbytes_spec(
    RmsProp8bit,
    "RMSprop 8-bit",
    "RMSprop8bit",
    1,
    removed=removed.OF_BITSANDBYTES | removed.not_in_bitsandbytes(momentum=0, centered=False),
)

ADAGRAD = _spec(Adagrad, "AdaGrad", "adagrad", bits_state(1), rates=LARGER_RATES)

ADAGRAD_8BIT = bitsandbytes_spec(
    Adagrad8bit,
    "AdaGrad 8-bit",
    "Adagrad8bit",
    1,
    rates=LARGER_RATES,
    removed={
        "lr_decay": RemovedSetting((0,), "bitsandbytes does not support it. Use a schedule."),
        "optim_bits": removed.ALWAYS_8_BITS,
        **removed.not_in_bitsandbytes(initial_accumulator_value=0),
        **removed.OF_BITSANDBYTES,
    },
)
