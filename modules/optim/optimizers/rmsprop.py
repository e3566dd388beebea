"""RMSprop (Hinton 2012): divides gradients by the root of their average square."""

from __future__ import annotations

import math
from typing import Any, Literal

from modules.optim.spec import OptimizerSettings, OptimizerSpec, Shape
from modules.optim.terms.general import Epsilon, Momentum, WeightDecay
from modules.optim.terms.kin import (
    BlockWiseOf32,
    Centered,
    PercentileClippingOf32,
    Smallest8BitOf32,
    Smoothing,
    StateBitsOf32,
)


class RmsProp(OptimizerSettings):
    """RMSprop (Hinton 2012): divides gradients by the root of their average square."""

    name: Literal["rmsprop"] = "rmsprop"
    alpha: Smoothing = 0.99
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    momentum: Momentum = 0.0
    centered: Centered = False
    optim_bits: StateBitsOf32 = "32"
    min_8bit_size: Smallest8BitOf32 = 4096
    percentile_clipping: PercentileClippingOf32 = 100
    block_wise: BlockWiseOf32 = True


def _arguments(settings: RmsProp) -> dict[str, Any]:
    return {
        "alpha": settings.alpha,
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
        "momentum": settings.momentum,
        "centered": settings.centered,
    }


def _state_bytes(settings: RmsProp, shape: Shape) -> float:
    num_arrays = 1 + (settings.momentum > 0) + settings.centered
    return 4.0 * num_arrays * math.prod(shape)


SPEC = OptimizerSpec(
    settings=RmsProp,
    label="RMSprop",
    factory="torch.optim:RMSprop",
    arguments=_arguments,
    state_bytes=_state_bytes,
)
