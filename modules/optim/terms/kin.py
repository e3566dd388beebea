"""Fields that two or three closely related optimizers share."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

from modules.optim.terms.bits import IN_32_BITS
from modules.optim.terms.general import advanced
from modules.settings.field import Setting, When
from modules.system.package import Package

PYTORCH_OPTIMIZER = Package("pytorch_optimizer", distribution="pytorch-optimizer")

InstabilityBeta = Annotated[
    float, Ge(0), Lt(1), advanced("Beta 3", "Decay of the running average of the updates' instability.")
]
SlowMeanBeta = Annotated[
    float,
    Ge(0),
    Lt(1),
    advanced("Beta 3", "Decay of the slow average of gradients: 0.9999 averages about 10,000 steps."),
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
RateDecay = Annotated[
    float,
    Ge(0),
    Le(10),
    advanced("Learning rate decay", "Lowers the learning rate a little with every step.", applies_when=IN_32_BITS),
]
FirstSum = Annotated[
    float,
    Ge(0),
    Le(1000),
    advanced(
        "Initial accumulator value",
        "The start value of the sum of squared gradients: a larger value makes the first steps smaller.",
        applies_when=IN_32_BITS,
    ),
]
MomentumIn32Bits = Annotated[
    float,
    Ge(0),
    Lt(1),
    Setting(
        "Momentum",
        "Decay of the running sum of gradients: 0.9 averages about 10 steps, 0 turns momentum off.",
        applies_when=IN_32_BITS,
    ),
]
Centered = Annotated[
    bool,
    advanced(
        "Centered", "Divides by the variance of the gradients instead of their mean square.", applies_when=IN_32_BITS
    ),
]
PositiveSmoothing = Annotated[
    float, Gt(0), Lt(1), advanced("Alpha", "Decay of the running average of squared gradients.")
]
PositiveMomentum = Annotated[
    float, Gt(0), Lt(1), Setting("Momentum", "Decay of the running sum of gradients: 0.9 averages about 10 steps.")
]
PositiveBeta1 = Annotated[
    float,
    Gt(0),
    Lt(1),
    advanced("Beta 1", "Where gradients are computed, between the newest weights (0) and their average (1)."),
]
