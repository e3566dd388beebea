"""Adafactor and its kin: a row and a column stand for the squares of a whole matrix."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le, Lt

from modules.config.sections.optimizers.terms import (
    Beta1,
    Beta2,
    Cautious,
    ClipThreshold,
    Epsilon,
    Epsilon2,
    FusedBackPass,
    FusedBackPassNotYet,
    Smallest8Bit,
    WeightDecay,
    advanced,
)
from modules.settings.field import Section, When

InstabilityBeta = Annotated[
    float, Ge(0), Lt(1), advanced("Beta 3", "How long the running mean of a step's own unsteadiness remembers.")
]
BlockSize = Annotated[
    int,
    Ge(1),
    Le(1_000_000),
    advanced("Block", "How many numbers of the 8-bit state share a scale.", unit="weights"),
]


class Adafactor(Section):
    """Adafactor (Shazeer and Stern 2018): little optimizer memory."""

    name: Literal["adafactor"] = "adafactor"
    eps: Epsilon = 1e-30
    eps2: Epsilon2 = 1e-3
    clip_threshold: ClipThreshold = 1.0
    beta2_decay: Annotated[
        float, Ge(-1), Le(0), advanced("Beta 2 decay", "How the running mean of squared gradients slows down.")
    ] = -0.8
    beta1: Annotated[
        float | None,
        Ge(0),
        Lt(1),
        advanced(
            "Beta 1",
            "How long a running mean of the updates remembers; it takes as much memory as the weights.",
            empty_means="no such mean",
        ),
    ] = None
    weight_decay: WeightDecay = 0.0
    scale_parameter: Annotated[
        bool,
        advanced("Scale with the weights", "Large weights move further: the rate is a share of their own size."),
    ] = False
    relative_step: Annotated[
        bool,
        advanced("Own learning rate", "The optimizer lowers its rate by itself, whatever is set.", not_yet="refused"),
    ] = False
    warmup_init: Annotated[
        bool,
        advanced(
            "Own warm-up",
            "The optimizer raises its own rate slowly at first.",
            applies_when=When("relative_step", (True,)),
            not_yet="refused",
        ),
    ] = False
    fused_back_pass: FusedBackPass = False


class Came(Section):
    """CAME (Luo et al. 2023): Adafactor that trusts steady updates more."""

    name: Literal["came"] = "came"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    beta3: InstabilityBeta = 0.9999
    eps: Epsilon = 1e-30
    eps2: Epsilon2 = 1e-16
    weight_decay: WeightDecay = 0.01
    use_cautious: Cautious = False
    fused_back_pass: FusedBackPassNotYet = False


class Came8bit(Section):
    """CAME with its state in 8 bits."""

    name: Literal["came_8bit"] = "came_8bit"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    beta3: InstabilityBeta = 0.9999
    eps: Epsilon = 1e-30
    eps2: Epsilon2 = 1e-16
    weight_decay: WeightDecay = 0.01
    fused_back_pass: FusedBackPassNotYet = False
    min_8bit_size: Smallest8Bit = 16384
    quant_block_size: BlockSize = 2048
