"""Prodigy with schedule-free averaging and little memory."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.optim.spec import FINDS_ITS_RATE, OptimizerSettings, OptimizerSpec
from modules.optim.terms.general import (
    Beta1,
    Beta2,
    BiasCorrection,
    Cautious,
    DistanceFactor,
    Epsilon,
    FirstDistance,
    FusedBackPassNotYet,
    LimitDistance,
    SearchSteps,
    SlowBeta,
    WeightDecay,
    advanced,
)
from modules.settings.field import When


class ProdigyPlusScheduleFree(OptimizerSettings):
    """Prodigy with schedule-free averaging and little memory."""

    name: Literal["prodigy_plus_schedule_free"] = "prodigy_plus_schedule_free"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.99
    beta3: SlowBeta = None
    weight_decay: WeightDecay = 0.0
    weight_decay_by_lr: Annotated[
        bool, advanced("Weight decay by LR", "Scales weight decay by the learning rate, as AdamW does.")
    ] = True
    use_bias_correction: BiasCorrection = False
    d0: FirstDistance = 1e-6
    d_coef: DistanceFactor = 1.0
    prodigy_steps: SearchSteps = 0
    use_speed: Annotated[
        bool, advanced("Speed", "Estimates the learning rate with a simpler method that needs less memory.")
    ] = False
    eps: Epsilon = 1e-8
    split_groups: Annotated[bool, advanced("Split groups", "Estimates a learning rate for each part of the model.")] = (
        True
    )
    split_groups_mean: Annotated[
        bool,
        advanced(
            "Split groups mean",
            "All parts use the mean of their estimated learning rates.",
            applies_when=When("split_groups", (True,)),
        ),
    ] = False
    factored: Annotated[
        bool, advanced("Factored", "Stores the squares of a matrix as a row and a column: much less memory.")
    ] = True
    factored_fp32: Annotated[
        bool,
        advanced(
            "Factored in float32",
            "Keeps the factored state in float32.",
            applies_when=When("factored", (True,)),
        ),
    ] = True
    fused_back_pass: FusedBackPassNotYet = False
    use_stableadamw: Annotated[bool, advanced("StableAdamW", "Scales unusually large updates of a tensor down.")] = True
    use_cautious: Cautious = False
    use_grams: Annotated[
        bool, advanced("Grams", "Uses the magnitude of Adam's update with the sign of the current gradient.")
    ] = False
    use_adopt: Annotated[
        bool, advanced("ADOPT", "Divides by the squared gradients of earlier steps, without the current one.")
    ] = False
    d_limiter: LimitDistance = True
    use_schedulefree: Annotated[
        bool, advanced("Schedule-free", "Averages the weights in place of a schedule. Turn it off to use a schedule.")
    ] = True
    schedulefree_c: Annotated[
        float,
        Ge(0),
        Le(10_000),
        advanced(
            "Schedule-free C",
            "A larger value makes the average forget early steps sooner; 0 averages as in the paper.",
            applies_when=When("use_schedulefree", (True,)),
        ),
    ] = 0.0
    use_orthograd: Annotated[
        bool, advanced("OrthoGrad", "Removes the component of each gradient that only scales the weights.")
    ] = False


SPEC = OptimizerSpec(
    settings=ProdigyPlusScheduleFree,
    label="Prodigy+ schedule-free",
    rates=FINDS_ITS_RATE,
    has_evaluation_mode=True,
)
