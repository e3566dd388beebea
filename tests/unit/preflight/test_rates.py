"""Learning rates that the chosen optimizer cannot use."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from modules.config.rules.optimizers import one_learning_rate, plausible_learning_rate, weights_that_stay_zero
from modules.config.schema import Config
from modules.optim.registry import OPTIMIZERS
from tests.unit.preflight.setups import changed
from trainer.preflight.requirements import problems_of_packages


def reported(optimizer: str, rate: float, *, trains: str = "adapter") -> list[tuple[str, str]]:
    """Return the rule's problems for an optimizer's name and a rate, even if the optimizer is not supported yet."""
    config: Any = Config().model_copy(
        update={"training": Config().training.model_copy(
            update={"optimizer": OPTIMIZERS[optimizer].settings(), "learning_rate": rate, "trains": trains})}
    )  # fmt: skip
    return [(p.path, p.advice) for p in plausible_learning_rate(config)]


@pytest.mark.parametrize(
    ("optimizer", "rate", "trains"),
    [
        ("prodigy", 1e-4, "adapter"),
        ("prodigy_plus_schedule_free", 1e-4, "full"),
        ("dadapt_adam", 3e-4, "adapter"),
        ("dadapt_lion", 1e-4, "adapter"),
        ("prodigy", 50.0, "adapter"),
        ("adamw", 1.0, "adapter"),
        ("adamw_8bit", 0.01, "full"),
        ("adafactor", 1.0, "full"),
        ("came", 1.0, "adapter"),
        ("adamw", 1e-9, "adapter"),
        ("lion", 0.01, "adapter"),
        ("lion_8bit", 1e-3, "full"),
        ("sgd", 1e-6, "adapter"),
        ("sgd", 50.0, "full"),
        ("muon", 2.0, "adapter"),
    ],
)
def test_an_implausible_rate(optimizer: str, rate: float, trains: str) -> None:
    [(path, advice)] = reported(optimizer, rate, trains=trains)
    assert path == "training.learning_rate"
    assert f"With {OPTIMIZERS[optimizer].label}, usual values for" in advice


@pytest.mark.parametrize(
    ("optimizer", "rate", "trains"),
    [
        ("prodigy", 1.0, "adapter"),
        ("dadapt_adan", 0.5, "full"),
        ("adamw", 1e-4, "adapter"),
        ("adamw", 1e-5, "full"),
        ("lion", 3e-5, "adapter"),
        ("lion", 1e-6, "full"),
        ("sgd", 0.1, "adapter"),
        ("muon", 0.01, "adapter"),
        ("schedule_free_adamw", 1e-3, "adapter"),
        ("adamw", 0.0, "adapter"),  # an error of its own
    ],
)
def test_a_plausible_rate(optimizer: str, rate: float, trains: str) -> None:
    assert reported(optimizer, rate, trains=trains) == []


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_has_rates_that_pass_and_rates_that_do_not(name: str) -> None:
    is_its_own = name.startswith(("prodigy", "dadapt"))
    assert reported(name, 1.0 if is_its_own else 2e-4) == []
    assert reported(name, 1e-4 if is_its_own else 200.0)


def test_an_optimizer_that_estimates_one_rate_rejects_different_ones() -> None:
    config = changed(Config(), parts__unet__learning_rate=1.0, training__learning_rate=0.5)
    assert not list(one_learning_rate(config))
    config = changed(config, training__optimizer="prodigy")
    (problem,) = one_learning_rate(config)
    assert (problem.path, problem.severity) == ("training.learning_rate", "error")
    assert "1, 0.5" in problem.message
    assert not list(one_learning_rate(changed(config, training__learning_rate=1.0)))
    assert not list(one_learning_rate(changed(config, parts__text_encoder__train=False)))


def test_the_rates_of_parts_count_and_those_of_frozen_ones_do_not() -> None:
    config = changed(Config(), parts__unet__learning_rate=5.0, training__learning_rate=1.0)
    both = ["parts.unet.learning_rate", "training.learning_rate"]
    assert sorted(p.path for p in plausible_learning_rate(config)) == both
    config = changed(config, parts__text_encoder__train=False)
    assert [p.path for p in plausible_learning_rate(config)] == ["parts.unet.learning_rate"]
    config = changed(config, parts__unet__train=False)
    assert list(plausible_learning_rate(config)) == []


def test_an_optimizer_that_leaves_zeros_cannot_train_an_adapter() -> None:
    config = changed(Config(), training__optimizer="lamb", training__trains="adapter")
    (problem,) = weights_that_stay_zero(config)
    assert (problem.path, problem.severity) == ("training.optimizer", "error")
    assert not list(weights_that_stay_zero(changed(config, training__optimizer__max_unorm=0.0)))
    assert not list(weights_that_stay_zero(changed(config, training__trains="full")))
    assert not list(weights_that_stay_zero(changed(config, training__optimizer="lion")))


def test_8_bit_state_of_an_optimizer_of_torch_needs_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    config = changed(Config(), training__optimizer="rmsprop")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not list(problems_of_packages(config))
    (problem,) = problems_of_packages(changed(config, training__optimizer__optim_bits="8"))
    assert "bitsandbytes" in problem.message
    (problem,) = problems_of_packages(changed(config, training__optimizer="prodigy_plus_schedule_free"))
    assert "Install prodigy-plus-schedule-free" in problem.advice
