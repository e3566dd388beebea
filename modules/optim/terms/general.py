"""The terms that optimizers share: each is declared here once and taken up by those that have it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from modules.settings.field import Setting, When


def advanced(label: str, explanation: str, **options: Any) -> Setting:
    """Return the setting of a term that beginners never touch."""
    return Setting(label, explanation, level="advanced", **options)


Beta1 = Annotated[
    float,
    Ge(0),
    Lt(1),
    advanced("Beta 1", "How long the running mean of gradients remembers: 0.9 looks back about ten steps."),
]
Beta2 = Annotated[
    float,
    Ge(0),
    Lt(1),
    advanced("Beta 2", "How long the running mean of squared gradients remembers: 0.999 looks back a thousand steps."),
]
Epsilon = Annotated[
    float,
    Gt(0),
    Le(1),
    advanced("Epsilon", "Keeps the division by small gradients finite; rarely touched."),
]
Epsilon2 = Annotated[
    float,
    Gt(0),
    Le(1),
    advanced("Epsilon 2", "A second small number: the least size that weights or updates are taken to have."),
]
WeightDecay = Annotated[
    float,
    Ge(0),
    Le(10),
    Setting("Weight decay", "Pulls weights towards zero at each step."),
]
Momentum = Annotated[
    float,
    Ge(0),
    Lt(1),
    Setting("Momentum", "How much of the last step's direction is kept: 0.9 looks back about ten steps, 0 not at all."),
]
Dampening = Annotated[
    float,
    Ge(0),
    Le(1),
    advanced("Dampening", "The share of the new gradient that momentum holds back."),
]
Nesterov = Annotated[
    bool,
    advanced("Nesterov momentum", "Looks ahead along the momentum before it steps. It needs momentum, undampened."),
]
AMSGRAD = advanced(
    "AMSGrad", "Divides by the largest mean of squared gradients so far (Reddi et al. 2018): steadier, slower."
)
AmsGrad = Annotated[bool, AMSGRAD]
ClipThreshold = Annotated[
    float,
    Ge(1),
    Le(100),
    advanced("Update clipping", "Larger updates are scaled down to this."),
]
BiasCorrection = Annotated[
    bool,
    advanced("Bias correction", "Makes up for running means that begin at zero: larger first steps."),
]

# How torch runs its own optimizers.
Maximize = Annotated[
    bool,
    advanced("Maximize", "Walks up the gradient in place of down it: unlearns. Not for ordinary training."),
]
Foreach = Annotated[
    bool,
    advanced("All weights at once", "Updates all weights in a few large operations: faster on a GPU, more memory."),
]
ForeachUnlessFused = Annotated[
    bool,
    advanced(
        "All weights at once",
        "Updates all weights in a few large operations: faster on a GPU, more memory.",
        applies_when=When("fused", (False,)),
    ),
]
Fused = Annotated[
    bool,
    advanced("Fused", "Does the whole update in one operation: the fastest, and with the least memory."),
]
Capturable = Annotated[
    bool,
    advanced("Capturable", "Lets the step be recorded in a CUDA graph.", not_yet="ignored"),
]
Differentiable = Annotated[
    bool,
    advanced("Differentiable", "Lets gradients flow through the step itself, for meta-learning.", not_yet="ignored"),
]
FUSED_BACK_PASS = advanced(
    "Fused backward pass",
    "Moves each weight as soon as its gradient is there and lets go of it: gradients take next to no memory. It cannot "
    "accumulate, clip gradients or compute in float16, and a step whose gradient breaks in mid-way is left out only "
    "from there on.",
)
FusedBackPass = Annotated[bool, FUSED_BACK_PASS]
FusedBackPassNotYet = Annotated[bool, replace(FUSED_BACK_PASS, not_yet="refused")]

# How 8-bit state is kept. The settings stand by themselves for those that follow only some of them.
STATE_BITS = advanced(
    "Bits of the state",
    "How exactly the optimizer's memory is kept: 8 bits take a quarter of the space.",
    choice_labels={"32": "32 bits", "8": "8 bits"},
)
SMALLEST_8BIT = advanced(
    "Smallest 8-bit tensor", "Tensors with fewer weights keep their state in 32 bits.", unit="weights"
)
PERCENTILE_CLIPPING = advanced(
    "Percentile clipping",
    "Gradients above this percentile of the last hundred norms are scaled down to it; 100 never clips.",
    unit="%",
)
BLOCK_WISE = advanced("Block by block", "Rounds the state to 8 bits in small blocks: one outlier spoils only its own.")
StateBits = Annotated[Literal["32", "8"], STATE_BITS]
Smallest8Bit = Annotated[int, Ge(0), Le(1_000_000_000), SMALLEST_8BIT]
PercentileClipping = Annotated[int, Ge(1), Le(100), PERCENTILE_CLIPPING]
BlockWise = Annotated[bool, BLOCK_WISE]
PAGED = advanced("Paged", "Lets the state move to the computer's memory when the GPU's is full.")
Paged = Annotated[bool, PAGED]

# Variations on the direction of a step.
Cautious = Annotated[
    bool,
    advanced("Cautious", "Leaves out the weights whose step goes against the newest gradient (Liang et al. 2024)."),
]
DecoupledDecay = Annotated[
    bool,
    advanced("Decoupled decay", "Pulls the weights themselves towards zero, as AdamW does, and not their gradients."),
]
FixedDecay = Annotated[
    bool,
    advanced("Fixed decay", "The weight decay does not follow the learning rate."),
]
EmaAlpha = Annotated[
    float,
    Ge(0),
    Le(1000),
    advanced("Alpha", "How much the slow mean of gradients counts beside the fast one; 5 is usual."),
]

# Optimizers that find their learning rate.
FirstDistance = Annotated[
    float,
    Gt(0),
    Le(1),
    advanced("First estimate (d0)", "The learning rate it begins its search with; rarely touched."),
]
DistanceFactor = Annotated[
    float,
    Gt(0),
    Le(1000),
    Setting("Estimate times (d_coef)", "Scales the learning rate that is found: 0.5 is gentler, 2 is bolder."),
]
GrowthRate = Annotated[
    float | None,
    Ge(1),
    Le(1e9),
    advanced("Growth", "How many times larger the rate that is found may get in one step.", empty_means="no limit"),
]
Decouple = Annotated[
    bool,
    advanced("Decoupled decay", "Pulls the weights themselves towards zero, as AdamW does, and not their gradients."),
]
SHARDED = advanced("Weights are sharded", "The weights are spread over several GPUs (FSDP).")
Sharded = Annotated[bool, SHARDED]
SliceEvery = Annotated[
    int,
    Ge(1),
    Le(10_000),
    advanced("One in", "The estimate looks at one weight in so many: less memory, hardly less exact.", unit="weights"),
]
SearchSteps = Annotated[
    int,
    Ge(0),
    Le(1_000_000),
    advanced("Search for", "The learning rate stays as found after so many steps; 0 never stops.", unit="steps"),
]
LimitDistance = Annotated[
    bool,
    advanced("Limit the estimate", "Keeps the rate that is found from leaping in one step."),
]
SlowBeta = Annotated[
    float | None,
    Ge(0),
    Lt(1),
    advanced("Beta 3", "How long the search for the rate remembers.", empty_means="the square root of beta 2"),
]
LogEvery = Annotated[
    int,
    Ge(0),
    Le(1_000_000),
    advanced("Log every", "Writes the rate that is found so often; 0 never.", unit="steps"),
]
