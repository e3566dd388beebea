"""Prodigy and schedule-free averaging in one, with little memory."""

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
    """Prodigy and schedule-free averaging in one, with little memory."""

    name: Literal["prodigy_plus_schedule_free"] = "prodigy_plus_schedule_free"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.99
    beta3: SlowBeta = None
    weight_decay: WeightDecay = 0.0
    weight_decay_by_lr: Annotated[
        bool, advanced("Decay follows the rate", "Weight decay is scaled by the learning rate, as AdamW's is.")
    ] = True
    use_bias_correction: BiasCorrection = False
    d0: FirstDistance = 1e-6
    d_coef: DistanceFactor = 1.0
    prodigy_steps: SearchSteps = 0
    use_speed: Annotated[bool, advanced("Speed", "Searches for the rate in a simpler way that needs less memory.")] = (
        False
    )
    eps: Epsilon = 1e-8
    split_groups: Annotated[
        bool, advanced("A rate for each part", "Finds a learning rate for each part of the model.")
    ] = True
    split_groups_mean: Annotated[
        bool,
        advanced(
            "Mean of the parts",
            "All parts use the mean of the rates that were found for each.",
            applies_when=When("split_groups", (True,)),
        ),
    ] = False
    factored: Annotated[
        bool, advanced("Factored", "A row and a column stand for the squares of a matrix: much less memory.")
    ] = True
    factored_fp32: Annotated[
        bool,
        advanced(
            "Factored in float32",
            "Keeps that row and column in float32.",
            applies_when=When("factored", (True,)),
        ),
    ] = True
    fused_back_pass: FusedBackPassNotYet = False
    use_stableadamw: Annotated[
        bool, advanced("StableAdamW", "Scales unusually large updates down, tensor by tensor.")
    ] = True
    use_cautious: Cautious = False
    use_grams: Annotated[
        bool, advanced("Grams", "Takes the size of a step from Adam and its sign from the newest gradient.")
    ] = False
    use_adopt: Annotated[bool, advanced("ADOPT", "Divides by the squares of the steps before and not of this one.")] = (
        False
    )
    d_limiter: LimitDistance = True
    use_schedulefree: Annotated[
        bool, advanced("Schedule-free", "Averages the weights; off for use with a schedule.")
    ] = True
    schedulefree_c: Annotated[
        float,
        Ge(0),
        Le(10_000),
        advanced(
            "Shorten the average",
            "More lets the average forget early steps sooner; 0 leaves it as in the paper.",
            applies_when=When("use_schedulefree", (True,)),
        ),
    ] = 0.0
    use_orthograd: Annotated[
        bool, advanced("OrthoGrad", "Takes out of each gradient what only scales the weights.")
    ] = False


SPEC = OptimizerSpec(
    settings=ProdigyPlusScheduleFree,
    label="Prodigy+ schedule-free",
    rates=FINDS_ITS_RATE,
    has_evaluation_mode=True,
)
