"""SGD, RMSprop and AdaGrad: momentum or squares of gradients alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

from modules.optim.spec import LARGER_RATES, PLAIN_RATES, OptimizerSettings, OptimizerSpec, Shape
from modules.optim.terms import fields, removed
from modules.optim.terms.state_bits import bits_state, in_8_bits, packages_of_bits
from modules.system.problem import Problem


class Sgd(OptimizerSettings):
    """Stochastic gradient descent, with optional momentum."""

    name: Literal["sgd"] = "sgd"
    momentum: fields.Momentum = 0.0
    dampening: fields.Dampening = 0.0
    weight_decay: fields.WeightDecay = 0.0
    nesterov: fields.Nesterov = False
    foreach: fields.Foreach = False
    maximize: fields.Maximize = False
    fused_back_pass: fields.FusedBackPass = False


class RmsProp(OptimizerSettings):
    """RMSprop (Hinton 2012): divides gradients by the root of their average square."""

    name: Literal["rmsprop"] = "rmsprop"
    alpha: fields.PositiveSmoothing = 0.99
    eps: fields.Epsilon = 1e-8
    weight_decay: fields.WeightDecay = 0.0
    momentum: fields.MomentumIn32Bits = 0.0
    centered: fields.Centered = False
    optim_bits: fields.StateBits = "32"
    min_8bit_size: fields.Smallest8BitOf32 = 4096
    fused_back_pass: fields.FusedBackPass = False


class Adagrad(OptimizerSettings):
    """AdaGrad (Duchi et al. 2011): the learning rate of each weight falls with its past gradients."""

    name: Literal["adagrad"] = "adagrad"
    lr_decay: fields.RateDecay = 0.0
    weight_decay: fields.WeightDecay = 0.0
    initial_accumulator_value: fields.FirstSum = 0.0
    eps: fields.Epsilon = 1e-10
    optim_bits: fields.StateBits = "32"
    min_8bit_size: fields.Smallest8BitOf32 = 4096
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

ADAGRAD = _spec(Adagrad, "AdaGrad", "adagrad", bits_state(1), rates=LARGER_RATES)
