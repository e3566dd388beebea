"""Schedules in closed form besides the usual ones: straight lines, powers, and constant rates that fall at the end."""

import math
from typing import Annotated, Literal

from annotated_types import Interval

from modules.optim.schedule_spec import MinFactor, Position, ScheduleSettings, ScheduleSpec
from modules.optim.schedules.usual import half_cosine
from modules.settings.field import Setting, advanced_setting
from modules.settings.shared_types import PositiveFraction

_DEFAULT_TIMESCALE = 10_000
_BEND = 0.9


class Linear(ScheduleSettings):
    """Falls in a straight line to the min factor."""

    name: Literal["linear"] = "linear"
    min_factor: MinFactor = 0.0


def _linear_curve(settings: Linear, at: Position) -> float:
    return 1.0 - at.progress


LINEAR = ScheduleSpec(settings=Linear, label="Linear", curve=_linear_curve)


class Polynomial(ScheduleSettings):
    """Falls as a power of what is left of the run."""

    name: Literal["polynomial"] = "polynomial"
    min_factor: MinFactor = 0.0
    power: Annotated[
        float,
        *Interval(gt=0, le=100),
        Setting("Power", "1 is a straight line; with a higher power the learning rate falls earlier."),
    ] = 1.0


def _polynomial_curve(settings: Polynomial, at: Position) -> float:
    return math.pow(1.0 - at.progress, settings.power)


POLYNOMIAL = ScheduleSpec(settings=Polynomial, label="Polynomial", curve=_polynomial_curve)


class InverseSqrt(ScheduleSettings):
    """Falls with the square root of the step (Vaswani et al. 2017), whatever the length of the run."""

    name: Literal["inverse_sqrt"] = "inverse_sqrt"
    min_factor: MinFactor = 0.0
    timescale_steps: Annotated[
        int,
        *Interval(ge=0, le=10_000_000),
        Setting(
            "Timescale",
            "After three times this many steps the learning rate is half. 0: the length of the warm-up, or 10,000 "
            "without one.",
            unit="steps",
        ),
    ] = 0


def _inverse_sqrt_curve(settings: InverseSqrt, at: Position) -> float:
    timescale = settings.timescale_steps or at.warmup_steps or _DEFAULT_TIMESCALE
    return 1.0 / math.sqrt(1.0 + (at.step - at.warmup_steps) / timescale)


INVERSE_SQRT = ScheduleSpec(settings=InverseSqrt, label="Inverse square root", curve=_inverse_sqrt_curve)


class Rex(ScheduleSettings):
    """REX (Chen et al. 2022): stays high for a long time and falls fast at the end."""

    name: Literal["rex"] = "rex"
    min_factor: MinFactor = 0.0


def _rex_curve(settings: Rex, at: Position) -> float:
    """REX of Chen et al. 2022, with another bend."""
    rest = 1.0 - at.progress
    return rest / (1.0 - _BEND + _BEND * rest)


REX = ScheduleSpec(settings=Rex, label="REX", curve=_rex_curve)


class WarmupStableDecay(ScheduleSettings):
    """Warm-up, stable, decay (WSD, Hu et al. 2024): constant, and falls only at the end of the run."""

    name: Literal["wsd"] = "wsd"
    min_factor: MinFactor = 0.0
    decay_share: Annotated[
        PositiveFraction,
        Setting("Decay ratio", "The last fraction of the run after the warm-up, in which the learning rate falls."),
    ] = 0.2
    decay_shape: Annotated[
        Literal["linear", "cosine", "sqrt"],
        advanced_setting(
            "Decay shape",
            "How the learning rate falls.",
            choice_labels={"linear": "Linear", "cosine": "Cosine", "sqrt": "1 - square root"},
        ),
    ] = "linear"


def _wsd_curve(settings: WarmupStableDecay, at: Position) -> float:
    decayed = max(0.0, 1.0 - (1.0 - at.progress) / settings.decay_share)
    match settings.decay_shape:
        case "linear":
            return 1.0 - decayed
        case "cosine":
            return half_cosine(decayed)
        case "sqrt":  # Hägele et al. 2024, arXiv 2405.18392, section 3
            return 1.0 - math.sqrt(decayed)


WSD = ScheduleSpec(settings=WarmupStableDecay, label="Warmup-stable-decay (WSD)", curve=_wsd_curve)
