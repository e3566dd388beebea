"""The schedule-free optimizers (Defazio et al. 2024), and Prodigy+ schedule-free."""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from annotated_types import Interval

from modules.optim import rates
from modules.optim.spec import OptimizerSettings, OptimizerSpec, Shape, always, averages, by_name
from modules.optim.terms import fields
from modules.settings.field import When, advanced_setting
from modules.system.factories import Package
from modules.system.problem import Problem


class ScheduleFreeAdamW(OptimizerSettings):
    """AdamW that averages its weights in place of a schedule (schedule-free)."""

    name: Literal["schedule_free_adamw"] = "schedule_free_adamw"
    beta1: Annotated[
        float,
        *Interval(gt=0, lt=1),
        advanced_setting(
            "Beta 1", "Where gradients are computed, between the newest weights (0) and their average (1)."
        ),
    ] = 0.9
    beta2: fields.Beta2 = 0.999
    eps: fields.Epsilon = 1e-8
    weight_decay: fields.WeightDecay = 0.01
    r: fields.AveragePower = 0.0
    weight_lr_power: fields.RatePower = 2.0
    foreach: fields.Foreach = False


class ScheduleFreeSgd(OptimizerSettings):
    """SGD that averages its weights in place of a schedule (schedule-free)."""

    name: Literal["schedule_free_sgd"] = "schedule_free_sgd"
    momentum: fields.PositiveMomentum = 0.9
    weight_decay: fields.WeightDecay = 0.01
    r: fields.AveragePower = 0.0
    weight_lr_power: fields.RatePower = 2.0
    foreach: fields.Foreach = False


_SCHEDULE_FREE: dict[str, Any] = {
    "group_state": ("k", "weight_sum", "lr_max"),
    "has_evaluation_mode": always,
    "effective_rate": rates.scheduled_rate,
}

SCHEDULE_FREE_ADAMW = OptimizerSpec(
    ScheduleFreeAdamW, "Schedule-free AdamW", "schedulefree:AdamWScheduleFree", **_SCHEDULE_FREE
)

SCHEDULE_FREE_SGD = OptimizerSpec(
    ScheduleFreeSgd,
    "Schedule-free SGD",
    "schedulefree:SGDScheduleFree",
    rates=rates.PLAIN,
    state_bytes=averages(1),
    **_SCHEDULE_FREE,
)


_SMALLEST_FACTORED = 32  # a matrix with both sides smaller keeps all squares
_SAMPLED_EVERY = 11  # the estimate uses every 11th weight


class ProdigyPlusScheduleFree(OptimizerSettings):
    """Prodigy with schedule-free averaging and little memory."""

    name: Literal["prodigy_plus_schedule_free"] = "prodigy_plus_schedule_free"
    beta1: fields.Beta1 = 0.9
    beta2: fields.Beta2 = 0.99
    beta3: fields.SlowBeta = None
    weight_decay: fields.WeightDecay = 0.0
    weight_decay_by_lr: Annotated[
        bool, advanced_setting("Weight decay by LR", "Scales weight decay by the learning rate, as AdamW does.")
    ] = True
    use_bias_correction: fields.BiasCorrection = False
    d0: fields.FirstDistance = 1e-6
    d_coef: fields.DistanceFactor = 1.0
    prodigy_steps: fields.SearchSteps = 0
    use_speed: Annotated[
        bool, advanced_setting("Speed", "Estimates the learning rate with a simpler method that needs less memory.")
    ] = False
    eps: fields.Epsilon = 1e-8
    split_groups: Annotated[
        bool, advanced_setting("Split groups", "Estimates a learning rate for each part of the model.")
    ] = True
    split_groups_mean: Annotated[
        bool,
        advanced_setting(
            "Split groups mean",
            "All parts use the mean of their estimated learning rates.",
            applies_when=When("split_groups", (True,)),
        ),
    ] = False
    factored: Annotated[
        bool, advanced_setting("Factored", "Stores the squares of a matrix as a row and a column: much less memory.")
    ] = True
    use_stableadamw: Annotated[
        bool, advanced_setting("StableAdamW", "Scales unusually large updates of a tensor down.")
    ] = True
    use_cautious: fields.Cautious = False
    use_grams: Annotated[
        bool,
        advanced_setting(
            "Grams",
            "Uses the magnitude of Adam's update with the sign of the current gradient.",
            applies_when=When("use_cautious", (False,)),
        ),
    ] = False
    use_adopt: Annotated[
        bool, advanced_setting("ADOPT", "Divides by the squared gradients of earlier steps, without the current one.")
    ] = False
    d_limiter: fields.LimitDistance = True
    use_schedulefree: Annotated[
        bool,
        advanced_setting(
            "Schedule-free", "Averages the weights in place of a schedule. Turn it off to use a schedule."
        ),
    ] = True
    schedulefree_c: Annotated[
        float,
        *Interval(ge=0, le=10_000),
        advanced_setting(
            "Schedule-free C",
            "A larger value makes the average forget early steps sooner; 0 averages as in the paper.",
            applies_when=When("use_schedulefree", (True,)),
        ),
    ] = 0.0
    use_orthograd: Annotated[
        bool, advanced_setting("OrthoGrad", "Removes the component of each gradient that only scales the weights.")
    ] = False


def _state_bytes(settings: ProdigyPlusScheduleFree, shape: Shape) -> float:
    """The second point or the average of gradients, the squares, and two bytes for every 11th weight, once or twice."""
    size = math.prod(shape)
    *_, second, largest = (1, 1, *sorted(shape))
    is_factored = settings.factored and len(shape) > 1 and largest >= _SMALLEST_FACTORED
    squares = size // largest + size // second if is_factored else size
    num_sampled = math.ceil(size / _SAMPLED_EVERY)
    return 4.0 * (size + squares) + 2.0 * num_sampled * (1 if settings.use_speed else 2)


def _problems(settings: ProdigyPlusScheduleFree) -> Iterator[Problem]:
    """Yield that the schedule-free average divides by beta 1."""
    if settings.use_schedulefree and settings.beta1 == 0:
        yield Problem(
            "beta1",
            "The schedule-free average needs a beta 1 above 0, and it is 0.",
            advice="Set beta 1 to 0.9, or switch schedule-free off.",
        )


def _effective_rate(group: Mapping[str, Any]) -> float:
    """The estimated distance times the learning rate; the parts may share the mean of their distances."""
    distance = group["shared_d"] if group["split_groups"] and group["split_groups_mean"] else None
    return float((group["d"] if distance is None else distance) * group["lr"])


PRODIGY_PLUS_SCHEDULE_FREE = OptimizerSpec(
    ProdigyPlusScheduleFree,
    "Prodigy+ schedule-free",
    "modules.optim.classes.prodigy_plus:ProdigyPlusScheduleFree",
    arguments=by_name(
        # Weights of 16 bits are rounded as for any other optimizer (`master_weights.py`).
        more=lambda _: {"stochastic_rounding": False},
    ),
    rates=rates.FINDS_ITSELF,
    state_bytes=_state_bytes,
    packages=(Package("prodigyplus", distribution="prodigy-plus-schedule-free"),),
    problems=_problems,
    group_state=(
        *("k", "d", "d_prev", "d_numerator", "d_denom", "prev_d_numerator", "max_d_numerator", "shared_d"),
        *("weight_sum", "running_weight_sum", "effective_lr"),
    ),
    has_evaluation_mode=lambda settings: settings.use_schedulefree,
    waits_per_weight=lambda settings: settings.use_speed,
    effective_rate=_effective_rate,
    lacks=("factored_fp32", "fused_back_pass"),
)
