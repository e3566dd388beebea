"""The learning rate schedule and the average of weights: their settings, and whether they suit the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from modules.config.schema import Config
from modules.optim.registry import OPTIMIZERS, optimizer_spec
from modules.optim.schedule_registry import SCHEDULES, learning_rate_factor
from modules.system.errors import DarkroomError
from modules.system.problem import Problem

_NUM_TRIED = 100


def schedule_fields(config: Config) -> Iterator[Problem]:
    """Yield the problems that the schedule's record finds in its settings."""
    settings = config.training.schedule
    for problem in SCHEDULES[settings.name].problems(settings):
        yield replace(problem, path=f"training.schedule.{problem.path}")


def schedule_of_optimizer(config: Config) -> Iterator[Problem]:
    """Yield problems where the optimizer should choose its learning rate itself but does not, or the reverse."""
    schedule, optimizer = SCHEDULES[config.training.schedule.name], optimizer_spec(config.training.optimizer)
    chooses = optimizer.chooses_rate is not None and optimizer.chooses_rate(config.training.optimizer)
    if schedule.is_of_optimizer and optimizer.chooses_rate is None:
        able = " or ".join(spec.label for spec in OPTIMIZERS.values() if spec.chooses_rate is not None)
        yield Problem(
            "training.schedule",
            f"With the schedule {schedule.label}, the optimizer chooses the learning rate itself. {optimizer.label} "
            "cannot do this.",
            advice=f"Choose the optimizer {able}, or another schedule.",
        )
    elif schedule.is_of_optimizer and not chooses:
        yield Problem(
            "training.schedule",
            f"With the schedule {schedule.label}, the optimizer chooses the learning rate itself, but its relative "
            f"step is off: the learning rate stays {config.training.learning_rate:g}.",
            "warning",
            "Switch on the optimizer's relative step, or choose a constant schedule.",
        )
    elif chooses and not schedule.is_of_optimizer:
        yield Problem(
            "training.schedule",
            f"{optimizer.label} chooses its learning rate itself: the learning rate and its schedule have no effect.",
            "warning",
            f"Choose the schedule {_of_optimizer()}, or switch off the optimizer's relative step.",
        )


def falling_schedule(config: Config) -> Iterator[Problem]:
    """Yield a warning for a schedule that falls with an optimizer that averages its weights instead."""
    optimizer = optimizer_spec(config.training.optimizer)
    if not optimizer.has_evaluation_mode(config.training.optimizer) or not _falls(config):
        return
    yield Problem(
        "training.schedule",
        f"{optimizer.label} averages the weights in place of a falling learning rate. With the schedule "
        f"{SCHEDULES[config.training.schedule.name].label}, the end of the run hardly counts in this average.",
        "warning",
        "Choose a constant schedule.",
    )


def two_averages(config: Config) -> Iterator[Problem]:
    """Yield a warning for EMA with an optimizer that averages the weights itself: EMA takes the place of that average.

    Such an optimizer trains other weights than it is evaluated with, and EMA averages the trained ones.
    """
    optimizer = optimizer_spec(config.training.optimizer)
    if config.training.ema.mode == "off" or not optimizer.has_evaluation_mode(config.training.optimizer):
        return
    yield Problem(
        "training.ema.mode",
        f"{optimizer.label} averages the weights itself. EMA averages the weights it trains on instead, and samples, "
        "validation and saved models use EMA's average in place of the optimizer's.",
        "warning",
        "Switch EMA off.",
    )


def _falls(config: Config) -> bool:
    """Return whether the learning rate is lower at the end of a run than in its middle or after the warm-up."""
    schedule = config.training.schedule.model_copy(update={"warmup_steps": 0, "warmup_share": 0.0})
    try:
        start, middle, end = (
            learning_rate_factor(
                schedule,
                step=step,
                total_steps=_NUM_TRIED,
                epochs=config.training.epochs,
                learning_rate=config.training.learning_rate,
            )
            for step in (0, _NUM_TRIED // 2, _NUM_TRIED - 1)
        )
    except DarkroomError:  # reported for the schedule itself
        return False
    return end < max(start, middle)


def _of_optimizer() -> str:
    return " or ".join(spec.label for spec in SCHEDULES.values() if spec.is_of_optimizer)
