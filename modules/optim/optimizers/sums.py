"""Optimizers with state of 32 or 8 bits: SGD, RMSprop, AdaGrad, LAMB and LARS."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

from annotated_types import Gt, Interval, Lt

from modules.optim import rates
from modules.optim.spec import OptimizerSettings, OptimizerSpec, always, averages, by_name
from modules.optim.terms import fields, shared_records
from modules.optim.terms.fields import IN_32_BITS
from modules.optim.terms.shared_records import bits_state, bitsandbytes_spec, eight_bits_of, in_8_bits
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


_OF_BITSANDBYTES = ("percentile_clipping", "block_wise")


def _sgd_problems(settings: Sgd) -> Iterator[Problem]:
    """Yield that Nesterov momentum needs a momentum above 0 without dampening."""
    if settings.nesterov and (settings.momentum == 0 or settings.dampening != 0):
        yield Problem(
            "nesterov",
            f"Nesterov momentum needs a momentum without dampening; momentum is {settings.momentum:g} and dampening "
            f"{settings.dampening:g}.",
            advice="Set the momentum to 0.9 and the dampening to 0, or switch Nesterov momentum off.",
        )


def _has_momentum(settings: Sgd | Sgd8bit) -> bool:
    return settings.momentum > 0


SGD = OptimizerSpec(
    Sgd,
    "SGD",
    "torch.optim:SGD",
    rates=rates.PLAIN,
    is_elementwise=True,
    state_bytes=averages(_has_momentum),
    problems=_sgd_problems,
    lacks=("differentiable",),
)


# Without momentum there is no state, and torch's SGD steps.
SGD_8BIT = OptimizerSpec(
    Sgd8bit,
    "SGD 8-bit",
    "modules.optim.classes.eight_bit:sgd",
    library="torch",
    rates=rates.PLAIN,
    state_bytes=bits_state(_has_momentum),
    waits_per_weight=_has_momentum,
    reads_memory_in_order=_has_momentum,
    packages=(shared_records.BITSANDBYTES,),
    lacks=(*_OF_BITSANDBYTES, "dampening", "nesterov"),
)


# Torch's with 32 bits, and bitsandbytes' with 8.
_OF_BOTH: dict[str, Any] = {"library": "torch", "lacks": _OF_BITSANDBYTES, **shared_records.OF_BITS}

RMSPROP = OptimizerSpec(
    RmsProp,
    "RMSprop",
    "modules.optim.classes.eight_bit:rmsprop",
    # In 8 bits there is neither momentum nor centering.
    state_bytes=bits_state(lambda s: 1 if in_8_bits(s) else 1 + (s.momentum > 0) + s.centered),
    **_OF_BOTH,
)

RMSPROP_8BIT = eight_bits_of(RMSPROP, RmsProp8bit, "RMSprop8bit", 1, lacks=(*_OF_BITSANDBYTES, "momentum", "centered"))

ADAGRAD = OptimizerSpec(
    Adagrad,
    "AdaGrad",
    "modules.optim.classes.eight_bit:adagrad",
    state_bytes=bits_state(1),
    rates=rates.LARGER,
    **_OF_BOTH,
)

ADAGRAD_8BIT = eight_bits_of(
    ADAGRAD,
    Adagrad8bit,
    "Adagrad8bit",
    1,
    lacks=("lr_decay", "optim_bits", "initial_accumulator_value", *_OF_BITSANDBYTES),
)


class Lamb(fields.AdamFields):
    """LAMB (You et al. 2020): Adam for very large batches, with updates limited by the norm of each weight tensor."""

    name: Literal["lamb"] = "lamb"
    optim_bits: fields.StateBits = "32"
    min_8bit_size: fields.Smallest8BitOf32 = 4096
    max_unorm: fields.LargestUpdate = 1.0
    fused_back_pass: fields.FusedBackPass = False


class Lamb8bit(shared_records.EightBitAdam):
    """LAMB with 8-bit state: the norm of a weight tensor limits its updates only where the state has 32 bits."""

    name: Literal["lamb_8bit"] = "lamb_8bit"


class Lars(OptimizerSettings):
    """LARS (You et al. 2017): SGD for very large batches, with updates limited by the norm of each weight tensor."""

    name: Literal["lars"] = "lars"
    momentum: fields.PositiveMomentum = 0.9
    weight_decay: fields.WeightDecay = 0.0
    optim_bits: fields.StateBits = "32"
    min_8bit_size: fields.Smallest8BitOf32 = 4096
    max_unorm: fields.LargestUpdate = 0.02
    fused_back_pass: fields.FusedBackPass = False


class Lars8bit(OptimizerSettings):
    """LARS with 8-bit momentum: the norm of a weight tensor limits its updates only where the state has 32 bits."""

    name: Literal["lars_8bit"] = "lars_8bit"
    momentum: fields.PositiveMomentum = 0.9
    weight_decay: fields.WeightDecay = 0.0
    min_8bit_size: fields.Smallest8Bit = 4096
    max_unorm: fields.LargestUpdate = 0.02
    fused_back_pass: fields.FusedBackPass = False


_NOT_IN_LAMB = ("bias_correction", "adam_w_mode", "percentile_clipping", "block_wise", "amsgrad")


def _limits(settings: Any) -> bool:
    """Return whether an update is limited by the norm of its weight: one that is zero then stays zero."""
    return bool(settings.max_unorm > 0)


LAMB = bitsandbytes_spec(
    Lamb, "LAMB", "LAMB", 2, has_norm=True, rates=rates.LARGER, leaves_zeros=_limits, lacks=_NOT_IN_LAMB
)

LAMB_8BIT = eight_bits_of(
    LAMB, Lamb8bit, "LAMB8bit", 2, has_norm=True, leaves_zeros=always, lacks=(*_NOT_IN_LAMB, "max_unorm")
)

_OF_LARS: dict[str, Any] = {
    "has_norm": True,
    "arguments": by_name(more=lambda _: {"lr": 1.0}),  # each group has its own
    "leaves_zeros": _limits,
    "lacks": ("percentile_clipping", "dampening", "nesterov"),
}

LARS = bitsandbytes_spec(Lars, "LARS", "LARS", 1, rates=rates.PLAIN, **_OF_LARS)

LARS_8BIT = eight_bits_of(LARS, Lars8bit, "LARS8bit", 1, **_OF_LARS)
