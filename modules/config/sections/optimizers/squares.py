"""AdaGrad and RMSprop: steps divided by what the squared gradients came to."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from annotated_types import Ge, Le, Lt

from modules.config.sections.optimizers.terms import (
    BLOCK_WISE,
    PERCENTILE_CLIPPING,
    SMALLEST_8BIT,
    STATE_BITS,
    BlockWise,
    Epsilon,
    FusedBackPassNotYet,
    Momentum,
    PercentileClipping,
    Smallest8Bit,
    StateBits,
    WeightDecay,
    advanced,
)
from modules.settings.field import Section, When

# torch has these two, with its state in 32 bits.
_IN_8_BITS = When("optim_bits", ("8",))
StateBitsOf32 = Annotated[Literal["32", "8"], replace(STATE_BITS, not_yet_choices=frozenset({"8"}))]
Smallest8BitOf32 = Annotated[int, Ge(0), Le(1_000_000_000), replace(SMALLEST_8BIT, applies_when=_IN_8_BITS)]
PercentileClippingOf32 = Annotated[int, Ge(1), Le(100), replace(PERCENTILE_CLIPPING, not_yet="refused")]
BlockWiseOf32 = Annotated[bool, replace(BLOCK_WISE, applies_when=_IN_8_BITS)]
RateDecay = Annotated[
    float, Ge(0), Le(10), advanced("Rate decay", "Lowers the learning rate a little with every step.")
]
FirstSum = Annotated[
    float,
    Ge(0),
    Le(1000),
    advanced("First sum", "What the sum of squared gradients begins with: more makes the first steps smaller."),
]
Smoothing = Annotated[
    float, Ge(0), Lt(1), advanced("Alpha", "How long the running mean of squared gradients remembers.")
]
Centered = Annotated[bool, advanced("Centered", "Divides by the spread of the gradients around their mean.")]


class Adagrad(Section):
    """AdaGrad (Duchi et al. 2011): weights that moved much move less and less."""

    name: Literal["adagrad"] = "adagrad"
    lr_decay: RateDecay = 0.0
    weight_decay: WeightDecay = 0.0
    initial_accumulator_value: FirstSum = 0.0
    eps: Epsilon = 1e-10
    optim_bits: StateBitsOf32 = "32"
    min_8bit_size: Smallest8BitOf32 = 4096
    percentile_clipping: PercentileClippingOf32 = 100
    block_wise: BlockWiseOf32 = True


class Adagrad8bit(Section):
    """AdaGrad with its state in 8 bits."""

    name: Literal["adagrad_8bit"] = "adagrad_8bit"
    lr_decay: RateDecay = 0.0
    weight_decay: WeightDecay = 0.0
    initial_accumulator_value: FirstSum = 0.0
    eps: Epsilon = 1e-10
    optim_bits: StateBits = "8"
    min_8bit_size: Smallest8Bit = 4096
    percentile_clipping: PercentileClipping = 100
    block_wise: BlockWise = True
    fused_back_pass: FusedBackPassNotYet = False


class RmsProp(Section):
    """RMSprop (Hinton 2012): steps divided by the recent size of the gradients."""

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


class RmsProp8bit(Section):
    """RMSprop with its state in 8 bits."""

    name: Literal["rmsprop_8bit"] = "rmsprop_8bit"
    alpha: Smoothing = 0.99
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    momentum: Momentum = 0.0
    centered: Centered = False
    min_8bit_size: Smallest8Bit = 4096
    percentile_clipping: PercentileClipping = 100
    block_wise: BlockWise = True
