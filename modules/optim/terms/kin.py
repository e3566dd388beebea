"""Fields that two or three close relatives share."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from annotated_types import Ge, Le, Lt

from modules.optim.terms.general import BLOCK_WISE, PERCENTILE_CLIPPING, SMALLEST_8BIT, STATE_BITS, advanced
from modules.settings.field import When

InstabilityBeta = Annotated[
    float, Ge(0), Lt(1), advanced("Beta 3", "How long the running mean of a step's own unsteadiness remembers.")
]
SlowMeanBeta = Annotated[
    float,
    Ge(0),
    Lt(1),
    advanced("Beta 3", "How long the slow mean of gradients remembers: 0.9999 looks back ten thousand steps."),
]
AdamWMode = Annotated[
    bool, advanced("Decay as AdamW", "Pulls the weights themselves towards zero and not their gradients.")
]
LargestUpdate = Annotated[
    float,
    Ge(0),
    Le(1000),
    advanced("Largest update", "A layer's step is at most this share of the size of its weights."),
]
Rectify = Annotated[
    bool, advanced("Rectify", "Holds the first steps back while little is known of the squares (Liu et al. 2020).")
]
PlainWhileUnsure = Annotated[
    bool,
    advanced(
        "Plain steps at first",
        "While little is known of the squares, steps as plain descent does, not at all otherwise.",
        applies_when=When("rectify", (True,)),
    ),
]
NormMean = Annotated[
    float,
    Ge(0),
    Le(1),
    advanced(
        "Mean of norms (r)", "How long the mean of gradient norms remembers.", applies_when=When("adanorm", (True,))
    ),
]
AdaNorm = Annotated[bool, advanced("AdaNorm", "Lifts unusually small gradients to their usual size.")]
AdamDebias = Annotated[bool, advanced("Correct only the squares", "Corrects the bias of the squares' mean alone.")]
AveragePower = Annotated[
    float,
    Ge(0),
    Le(100),
    advanced("Weigh later steps (r)", "How much more later steps count in the average; 0 counts all alike."),
]
RatePower = Annotated[
    float,
    Ge(0),
    Le(100),
    advanced("Weigh by the rate", "The power of the learning rate that a step counts with during the warm-up."),
]
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
