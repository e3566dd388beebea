"""Fields that several optimizers share: each is declared here once and used by the optimizers that have it."""

from dataclasses import replace
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval, Le, Lt

from modules.optim.spec import OptimizerSettings
from modules.settings.field import Setting, When, advanced_setting
from modules.settings.shared_types import Decay, PositiveFraction, UpTo100, UpTo1000

Beta1 = Annotated[
    Decay, advanced_setting("Beta 1", "Decay of the running average of gradients: 0.9 averages about 10 steps.")
]
Beta2 = Annotated[
    Decay,
    advanced_setting("Beta 2", "Decay of the running average of squared gradients: 0.999 averages about 1,000 steps."),
]
Epsilon = Annotated[
    PositiveFraction, advanced_setting("Epsilon", "Keeps the division by small gradients finite; rarely changed.")
]
Epsilon2 = Annotated[
    PositiveFraction, advanced_setting("Epsilon 2", "A second small number: the minimum scale of weights or updates.")
]
WeightDecay = Annotated[
    float,
    *Interval(ge=0, le=10),
    Setting("Weight decay", "Pulls weights towards zero at each step.", changeable_on_resume=True),
]
MOMENTUM = Setting(
    "Momentum", "Decay of the running sum of gradients: 0.9 averages about 10 steps, 0 turns momentum off."
)
Momentum = Annotated[Decay, MOMENTUM]
Nesterov = Annotated[
    bool,
    advanced_setting("Nesterov momentum", "Looks ahead along the momentum. Needs a momentum above 0 and no dampening."),
]
AmsGrad = Annotated[
    bool,
    advanced_setting(
        "AMSGrad",
        "Divides by the maximum of the squared-gradient average so far (Reddi et al. 2018): steadier, slower.",
    ),
]
BiasCorrection = Annotated[
    bool,
    advanced_setting("Bias correction", "Corrects the running averages for starting at zero: larger first steps."),
]

# Options of torch's own optimizers.
Maximize = Annotated[
    bool,
    advanced_setting("Maximize", "Maximizes the loss instead of minimizing it. Not for ordinary training."),
]
FOREACH = advanced_setting("Foreach", "Updates all weights in a few large operations: faster on a GPU, more memory.")
Foreach = Annotated[bool, FOREACH]
FusedBackPass = Annotated[
    bool,
    advanced_setting(
        "Fused backward pass",
        "Updates each weight as soon as its gradient is computed and frees the gradient: gradients take almost no "
        "memory. Has no effect with gradient accumulation or float16; gradient clipping applies to each weight alone. "
        "A step with a gradient that is not finite is skipped only from that weight on.",
    ),
]

# Options that change the direction of an update.
Cautious = Annotated[
    bool,
    advanced_setting(
        "Cautious", "Skips the weights whose update points against the current gradient (Liang et al. 2024)."
    ),
]
DecoupledDecay = Annotated[
    bool,
    advanced_setting(
        "Decoupled weight decay", "Applies weight decay to the weights, as AdamW does, not to the gradients."
    ),
]
FixedDecay = Annotated[
    bool,
    advanced_setting("Fixed decay", "The weight decay does not scale with the learning rate."),
]

# Optimizers that estimate their learning rate.
FirstDistance = Annotated[
    PositiveFraction,
    advanced_setting("Initial estimate (d0)", "The first estimate of the learning rate; rarely changed."),
]
DistanceFactor = Annotated[
    float,
    *Interval(gt=0, le=1000),
    Setting("D coefficient (d_coef)", "Scales the estimated learning rate: 0.5 is gentler, 2 is stronger."),
]
GrowthRate = Annotated[
    float | None,
    *Interval(ge=1, le=1e9),
    advanced_setting(
        "Growth rate", "The largest factor by which the estimate may grow per step.", empty_means="no limit"
    ),
]
SliceEvery = Annotated[
    int,
    *Interval(ge=1, le=10_000),
    advanced_setting(
        "Slice p", "The estimate uses every n-th weight: less memory, hardly less exact. 11 is usual.", unit="weights"
    ),
]
SearchSteps = Annotated[
    int,
    *Interval(ge=0, le=1_000_000),
    advanced_setting(
        "Prodigy steps", "Stops estimating the learning rate after this many steps; 0 never stops.", unit="steps"
    ),
]
LimitDistance = Annotated[
    bool,
    advanced_setting("D limiter", "Limits how fast the estimated learning rate grows."),
]
SlowBeta = Annotated[
    Decay | None,
    advanced_setting("Beta 3", "Decay of the averages behind the estimate.", empty_means="the square root of beta 2"),
]

IN_8_BITS = When("optim_bits", ("8",))
IN_32_BITS = When("optim_bits", ("32",))

_SMALLEST = advanced_setting(
    "Min 8-bit size", "Tensors with fewer weights keep their state in 32 bits.", unit="weights"
)
Smallest8Bit = Annotated[int, Ge(0), Le(1_000_000_000), _SMALLEST]
Smallest8BitOf32 = Annotated[int, Ge(0), Le(1_000_000_000), replace(_SMALLEST, applies_when=IN_8_BITS)]
StateBits = Annotated[
    Literal["32", "8"],
    advanced_setting(
        "Optimizer state bits",
        "The precision of the optimizer state: 8 bits need a quarter of the memory, and the package bitsandbytes.",
        choice_labels={"32": "32 bits", "8": "8 bits"},
    ),
]
LargestUpdate = Annotated[
    UpTo1000,
    advanced_setting(
        "Max update",
        "The largest update of a weight tensor, as a fraction of its norm; 0 sets no limit. Tensors with 8-bit state "
        "have none.",
    ),
]

Rectify = Annotated[
    bool,
    advanced_setting("Rectify", "Reduces the first steps while the variance estimate is unreliable (Liu et al. 2020)."),
]
PlainWhileUnsure = Annotated[
    bool,
    advanced_setting(
        "Degenerate to SGD",
        "Uses SGD steps while the variance estimate is unreliable; without it these steps are skipped.",
        applies_when=When("rectify", (True,)),
    ),
]
AdamDebias = Annotated[bool, advanced_setting("Adam debias", "Corrects the bias of the squared-gradient average only.")]
AveragePower = Annotated[
    UpTo100,
    advanced_setting(
        "Averaging power (r)", "How much more later steps weigh in the average; 0 weighs all steps equally."
    ),
]
RatePower = Annotated[
    UpTo100,
    advanced_setting(
        "Weight LR power", "The power of the learning rate that weighs each step of the warm-up in the average."
    ),
]
PositiveMomentum = Annotated[
    float, Gt(0), Lt(1), Setting("Momentum", "Decay of the running sum of gradients: 0.9 averages about 10 steps.")
]


class AdamFields(OptimizerSettings):
    """The settings that Adam shares with optimizers like it."""

    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
