"""Schedules that do not suit the optimizer, or that cannot be used as they are set."""

from __future__ import annotations

from typing import Any

import pytest

from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.optim.registry import OPTIMIZERS
from modules.system.problem import Problem


def found(optimizer: dict[str, Any], schedule: dict[str, Any], rate: float = 1e-4) -> list[Problem]:
    training = {"optimizer": optimizer, "schedule": schedule, "learning_rate": rate}
    return [p for p in problems_of(Config.model_validate({"training": training})) if "schedule" in p.path]


RELATIVE = {"name": "adafactor", "relative_step": True}


@pytest.mark.parametrize(
    ("optimizer", "schedule", "severity", "words"),
    [
        ({"name": "adamw"}, {"name": "adafactor"}, "error", "AdamW cannot do this"),
        ({"name": "adafactor"}, {"name": "adafactor"}, "warning", "the learning rate stays 0.0001"),
        (RELATIVE, {"name": "cosine"}, "warning", "its schedule have no effect"),
        ({"name": "schedule_free_adamw"}, {"name": "cosine"}, "warning", "in place of a falling learning rate"),
        ({"name": "adamw"}, {"name": "custom"}, "error", "No class is given"),
        ({"name": "adamw"}, {"name": "expression", "expression": "stp"}, "error", '"stp" is not known'),
        ({"name": "adamw"}, {"name": "points", "points": "x"}, "error", "progress:factor"),
    ],
)
def test_what_does_not_suit(optimizer: dict[str, Any], schedule: dict[str, Any], severity: str, words: str) -> None:
    (problem,) = found(optimizer, schedule)
    assert (problem.severity, words in problem.message) == (severity, True), problem
    assert problem.advice


@pytest.mark.parametrize(
    ("optimizer", "schedule"),
    [
        (RELATIVE, {"name": "adafactor"}),
        ({"name": "adafactor"}, {"name": "cosine"}),
        ({"name": "schedule_free_adamw"}, {"name": "constant", "warmup_steps": 50}),
        ({"name": "prodigy_plus_schedule_free", "use_schedulefree": False}, {"name": "cosine"}),
        ({"name": "adamw"}, {"name": "expression"}),
        ({"name": "adamw"}, {"name": "custom", "class_name": "StepLR", "arguments": "step_size = 9"}),
    ],
)
def test_what_suits(optimizer: dict[str, Any], schedule: dict[str, Any]) -> None:
    assert found(optimizer, schedule) == []


@pytest.mark.parametrize(
    ("optimizer", "mode", "is_reported"),
    [
        ({"name": "schedule_free_adamw"}, "train_device", True),
        ({"name": "prodigy_plus_schedule_free"}, "temp_device", True),
        ({"name": "prodigy_plus_schedule_free", "use_schedulefree": False}, "train_device", False),
        ({"name": "schedule_free_adamw"}, "off", False),
        ({"name": "adamw"}, "train_device", False),
    ],
)
def test_ema_takes_the_place_of_the_optimizers_own_average(
    optimizer: dict[str, Any], mode: str, is_reported: bool
) -> None:
    training = {"optimizer": optimizer, "ema": {"mode": mode}}
    problems = [p for p in problems_of(Config.model_validate({"training": training})) if p.path == "training.ema.mode"]
    assert [p.severity for p in problems] == ["warning"] * is_reported
    assert all("in place of the optimizer's" in p.message and p.advice for p in problems)


def test_a_rate_that_the_optimizer_ignores_is_not_implausible() -> None:
    training = {"optimizer": RELATIVE, "schedule": "adafactor", "learning_rate": 5.0}
    assert not [p for p in problems_of(Config.model_validate({"training": training})) if "rate" in p.path]


def test_only_optimizers_that_can_choose_their_rate_say_so() -> None:
    able = {name for name, spec in OPTIMIZERS.items() if spec.chooses_rate is not None}
    assert able == {"adafactor"}
