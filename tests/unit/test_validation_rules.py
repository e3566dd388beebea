"""Settings that depend on validation are reported if they cannot take effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modules.config.rules.images import validation
from modules.config.schema import Config
from modules.system.problem import Problem
from tests.builders.configs import laid_over, small_config
from trainer.preflight.length import problems_of_validation

MEASURED = {"path": "held out", "kind": "validation", "name": "held out"}


def config_with(tmp_path: Path, concepts: list[dict[str, Any]] | None = None, **settings: Any) -> Config:
    config = small_config(tmp_path, model=tmp_path, images=tmp_path)
    changes = {
        "concepts": [{"path": "seen"}, *([MEASURED] if concepts is None else concepts)],
        "training": {"epochs": 4},
        "validation": {"every": {"n": 1, "unit": "epoch"}, **settings},
    }
    return laid_over(config, changes)


def found(problems: Any) -> list[tuple[str, str]]:
    return [(p.path, p.severity) for p in problems]


def one(problems: Any) -> Problem:
    [problem] = list(problems)
    assert problem.advice
    return problem  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "settings",
    [{}, {"keep_best": True, "result": "best"}, {"early_stopping_patience": 3}, {"every": {"n": 4, "unit": "epoch"}}],
)
def test_settings_that_take_effect_are_not_reported(tmp_path: Path, settings: dict[str, Any]) -> None:
    assert found(validation(config_with(tmp_path, **settings))) == []


@pytest.mark.parametrize("every", [{"unit": "never"}, {"n": 0, "unit": "step"}])
def test_settings_that_depend_on_validation_need_it(tmp_path: Path, every: dict[str, Any]) -> None:
    off = config_with(tmp_path, every=every, keep_best=True, result="best", early_stopping_patience=2)
    assert found(validation(off)) == [
        ("validation.result", "error"),
        ("validation.early_stopping_patience", "error"),
    ]
    by_default = config_with(tmp_path, every=every)
    assert by_default.validation.keep_best
    assert found(validation(by_default)) == []


@pytest.mark.parametrize("unit", ["epoch", "step"])
def test_a_period_near_nothing_breaks_no_rule(tmp_path: Path, unit: str) -> None:
    """It used to be an OverflowError before the start."""
    config = config_with(tmp_path, every={"n": 5e-324, "unit": unit}, early_stopping_patience=3)
    assert found([*validation(config), *problems_of_validation(config, total_steps=40)]) == []


@pytest.mark.parametrize(("patience", "warns"), [(3, False), (4, True), (99, True)])
def test_an_early_stop_that_cannot_happen_is_reported(tmp_path: Path, patience: int, warns: bool) -> None:
    """The first of four validations is the best: three worse ones can follow."""
    problems = list(validation(config_with(tmp_path, early_stopping_patience=patience)))
    assert found(problems) == ([("validation.early_stopping_patience", "warning")] if warns else [])
    by_step = config_with(tmp_path, every={"n": 10, "unit": "step"}, early_stopping_patience=patience)
    assert found(validation(by_step)) == []
    assert found(problems_of_validation(by_step, total_steps=49)) == found(problems)
    assert found(problems_of_validation(config_with(tmp_path, early_stopping_patience=patience), total_steps=49)) == []


def test_a_run_that_ends_before_a_validation(tmp_path: Path) -> None:
    seldom = {"every": {"n": 5, "unit": "epoch"}}
    problem = one(validation(config_with(tmp_path, **seldom)))
    assert (problem.path, problem.severity) == ("validation.every", "warning")
    assert "every 5 epochs" in problem.message
    assert one(validation(config_with(tmp_path, **seldom, keep_best=True))).severity == "warning"
    assert one(validation(config_with(tmp_path, **seldom, keep_best=True, result="best"))).severity == "error"
    by_step = config_with(tmp_path, every={"n": 50, "unit": "step"})
    assert one(problems_of_validation(by_step, total_steps=49)).path == "validation.every"
    assert found(problems_of_validation(by_step, total_steps=50)) == []
    assert found(problems_of_validation(by_step, total_steps=0)) == []  # there are no images, which is reported


def test_periods_of_time_are_not_checked(tmp_path: Path) -> None:
    by_time = config_with(tmp_path, every={"n": 9, "unit": "hour"}, early_stopping_patience=50)
    assert found([*validation(by_time), *problems_of_validation(by_time, total_steps=5)]) == []


def test_concepts_that_are_never_measured(tmp_path: Path) -> None:
    never = {**MEASURED, "repeats": 0}
    assert found(validation(config_with(tmp_path, [MEASURED, never]))) == [("concepts.2.repeats", "warning")]
    assert found(validation(config_with(tmp_path, [never]))) == [("concepts.1.repeats", "error")]
    assert found(validation(config_with(tmp_path, [{**never, "enabled": False}]))) == []
