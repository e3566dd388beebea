"""LAMB and LARS, for very large batches: each layer's step is measured by its weights."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.config.sections.optimizers.terms import (
    AmsGrad,
    Beta1,
    Beta2,
    BiasCorrection,
    BlockWise,
    Dampening,
    Epsilon,
    Momentum,
    Nesterov,
    PercentileClipping,
    Smallest8Bit,
    StateBits,
    WeightDecay,
    advanced,
)
from modules.settings.field import Section

AdamWMode = Annotated[
    bool, advanced("Decay as AdamW", "Pulls the weights themselves towards zero and not their gradients.")
]
LargestUpdate = Annotated[
    float,
    Ge(0),
    Le(1000),
    advanced("Largest update", "A layer's step is at most this share of the size of its weights."),
]


class Lamb(Section):
    """LAMB (You et al. 2020): Adam for very large batches."""

    name: Literal["lamb"] = "lamb"
    bias_correction: BiasCorrection = True
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    amsgrad: AmsGrad = False
    adam_w_mode: AdamWMode = True
    optim_bits: StateBits = "32"
    min_8bit_size: Smallest8Bit = 4096
    percentile_clipping: PercentileClipping = 100
    block_wise: BlockWise = False
    max_unorm: LargestUpdate = 1.0


class Lamb8bit(Section):
    """LAMB with its state in 8 bits."""

    name: Literal["lamb_8bit"] = "lamb_8bit"
    bias_correction: BiasCorrection = True
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    amsgrad: AmsGrad = False
    adam_w_mode: AdamWMode = True
    min_8bit_size: Smallest8Bit = 4096
    percentile_clipping: PercentileClipping = 100
    block_wise: BlockWise = False
    max_unorm: LargestUpdate = 1.0


class Lars(Section):
    """LARS (You et al. 2017): gradient descent for very large batches."""

    name: Literal["lars"] = "lars"
    momentum: Momentum = 0.0
    dampening: Dampening = 0.0
    weight_decay: WeightDecay = 0.0
    nesterov: Nesterov = False
    optim_bits: StateBits = "32"
    min_8bit_size: Smallest8Bit = 4096
    percentile_clipping: PercentileClipping = 100
    max_unorm: LargestUpdate = 0.02


class Lars8bit(Section):
    """LARS with its momentum in 8 bits."""

    name: Literal["lars_8bit"] = "lars_8bit"
    momentum: Momentum = 0.0
    dampening: Dampening = 0.0
    weight_decay: WeightDecay = 0.0
    nesterov: Nesterov = False
    min_8bit_size: Smallest8Bit = 4096
    percentile_clipping: PercentileClipping = 100
    max_unorm: LargestUpdate = 0.02
