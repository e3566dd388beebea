"""Optimizers that keep one number for a weight, or none: plain descent and Lion."""

from __future__ import annotations

from typing import Annotated, Literal

from modules.config.sections.optimizers.terms import (
    Beta1,
    Beta2,
    BlockWise,
    Dampening,
    Differentiable,
    Foreach,
    Maximize,
    Momentum,
    Nesterov,
    Paged,
    PercentileClipping,
    Smallest8Bit,
    WeightDecay,
    advanced,
)
from modules.settings.field import Section


class Sgd(Section):
    """Gradient descent, with momentum where it is set."""

    name: Literal["sgd"] = "sgd"
    momentum: Momentum = 0.0
    dampening: Dampening = 0.0
    weight_decay: WeightDecay = 0.0
    nesterov: Nesterov = False
    foreach: Foreach = False
    maximize: Maximize = False
    differentiable: Differentiable = False


class Sgd8bit(Section):
    """Gradient descent with its momentum in 8 bits."""

    name: Literal["sgd_8bit"] = "sgd_8bit"
    momentum: Momentum = 0.0
    dampening: Dampening = 0.0
    weight_decay: WeightDecay = 0.0
    nesterov: Nesterov = False
    min_8bit_size: Smallest8Bit = 4096
    percentile_clipping: PercentileClipping = 100
    block_wise: BlockWise = True


class Lion(Section):
    """Lion (Chen et al. 2023): every weight moves by the whole rate, only its sign is learned."""

    name: Literal["lion"] = "lion"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.99
    weight_decay: WeightDecay = 0.0
    use_triton: Annotated[bool, advanced("Triton kernel", "Uses a kernel of its own on the GPU: faster.")] = False


class Lion8bit(Section):
    """Lion with its momentum in 8 bits."""

    name: Literal["lion_8bit"] = "lion_8bit"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    weight_decay: WeightDecay = 0.0
    min_8bit_size: Smallest8Bit = 4096
    percentile_clipping: PercentileClipping = 100
    block_wise: BlockWise = True
    is_paged: Paged = False
