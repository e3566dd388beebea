"""Fields that two or three closely related optimizers share."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from annotated_types import Ge, Le, Lt

from modules.optim.terms.general import BLOCK_WISE, PERCENTILE_CLIPPING, SMALLEST_8BIT, STATE_BITS, advanced
from modules.settings.field import When

InstabilityBeta = Annotated[
    float, Ge(0), Lt(1), advanced("Beta 3", "Decay of the running average of the updates' instability.")
]
SlowMeanBeta = Annotated[
    float,
    Ge(0),
    Lt(1),
    advanced("Beta 3", "Decay of the slow average of gradients: 0.9999 averages about 10,000 steps."),
]
AdamWMode = Annotated[
    bool, advanced("AdamW mode", "Applies weight decay to the weights, as AdamW does, not to the gradients.")
]
LargestUpdate = Annotated[
    float,
    Ge(0),
    Le(1000),
    advanced("Max update", "The largest update of a layer, as a fraction of the norm of its weights."),
]
Rectify = Annotated[
    bool, advanced("Rectify", "Reduces the first steps while the variance estimate is unreliable (Liu et al. 2020).")
]
PlainWhileUnsure = Annotated[
    bool,
    advanced(
        "Degenerate to SGD",
        "Uses SGD steps while the variance estimate is unreliable; without it these steps are skipped.",
        applies_when=When("rectify", (True,)),
    ),
]
NormMean = Annotated[
    float,
    Ge(0),
    Le(1),
    advanced("AdaNorm decay (r)", "Decay of the average of gradient norms.", applies_when=When("adanorm", (True,))),
]
AdaNorm = Annotated[bool, advanced("AdaNorm", "Scales unusually small gradients up to their average norm.")]
AdamDebias = Annotated[bool, advanced("Adam debias", "Corrects the bias of the squared-gradient average only.")]
AveragePower = Annotated[
    float,
    Ge(0),
    Le(100),
    advanced("Averaging power (r)", "How much more later steps weigh in the average; 0 weighs all steps equally."),
]
RatePower = Annotated[
    float,
    Ge(0),
    Le(100),
    advanced("Weight LR power", "The power of the learning rate that weighs each step of the warm-up in the average."),
]
_IN_8_BITS = When("optim_bits", ("8",))
StateBitsOf32 = Annotated[Literal["32", "8"], replace(STATE_BITS, not_yet_choices=frozenset({"8"}))]
Smallest8BitOf32 = Annotated[int, Ge(0), Le(1_000_000_000), replace(SMALLEST_8BIT, applies_when=_IN_8_BITS)]
PercentileClippingOf32 = Annotated[int, Ge(1), Le(100), replace(PERCENTILE_CLIPPING, not_yet="refused")]
BlockWiseOf32 = Annotated[bool, replace(BLOCK_WISE, applies_when=_IN_8_BITS)]
RateDecay = Annotated[
    float, Ge(0), Le(10), advanced("Learning rate decay", "Lowers the learning rate a little with every step.")
]
FirstSum = Annotated[
    float,
    Ge(0),
    Le(1000),
    advanced(
        "Initial accumulator value",
        "The start value of the sum of squared gradients: a larger value makes the first steps smaller.",
    ),
]
Smoothing = Annotated[float, Ge(0), Lt(1), advanced("Alpha", "Decay of the running average of squared gradients.")]
Centered = Annotated[
    bool, advanced("Centered", "Divides by the variance of the gradients instead of their mean square.")
]
