"""Learning rate schedules against the classes of torch and transformers that they stand for."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import optimization

from modules.optim.schedule_registry import SCHEDULES, factors_over_run, learning_rate_factor
from modules.optim.schedule_spec import ScheduleSettings
from modules.optim.schedules.curves import InverseSqrt, Polynomial, WarmupStableDecay
from modules.optim.schedules.custom import Custom
from modules.optim.schedules.expression import Expression
from modules.optim.schedules.points import Points
from modules.system.errors import DarkroomError

RATE = 2e-4
STEPS = 60


def rates(settings: ScheduleSettings, total_steps: int = STEPS, **facts: Any) -> list[float]:
    return [
        learning_rate_factor(settings, step=s, total_steps=total_steps, learning_rate=RATE, **facts)
        for s in range(total_steps)
    ]


def of_torch(scheduler: Any, num_steps: int = STEPS, **arguments: Any) -> list[float]:
    """The rates of torch's class, stepped once per optimizer step, relative to the rate that is set."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=RATE)
    schedule = scheduler(optimizer, **arguments)
    found = []
    for _ in range(num_steps):
        found.append(optimizer.param_groups[0]["lr"] / RATE)
        optimizer.step()
        schedule.step()
    return found


CLASSES: list[tuple[str, dict[str, Any]]] = [
    ("StepLR", {"step_size": 7, "gamma": 0.5}),
    ("MultiStepLR", {"milestones": [5, 20, 20, 41], "gamma": 0.3}),
    ("ConstantLR", {"factor": 0.25, "total_iters": 9}),
    ("LinearLR", {"start_factor": 0.1, "end_factor": 0.8, "total_iters": 30}),
    ("ExponentialLR", {"gamma": 0.97}),
    ("PolynomialLR", {"total_iters": 40, "power": 2.0}),
    ("CosineAnnealingLR", {"T_max": 13, "eta_min": 1e-6}),
    ("CosineAnnealingWarmRestarts", {"T_0": 9}),
    ("CosineAnnealingWarmRestarts", {"T_0": 6, "T_mult": 2, "eta_min": 1e-5}),
    ("OneCycleLR", {"max_lr": 1e-3, "total_steps": 61}),
    ("OneCycleLR", {"max_lr": 1e-3, "epochs": 7, "steps_per_epoch": 9, "pct_start": 0.25, "anneal_strategy": "linear"}),
    ("OneCycleLR", {"max_lr": 5e-4, "total_steps": 61, "three_phase": True, "div_factor": 10, "final_div_factor": 50}),
    ("CyclicLR", {"base_lr": 1e-5, "max_lr": 1e-3, "step_size_up": 4, "cycle_momentum": False}),
    ("CyclicLR", {"base_lr": 1e-5, "max_lr": 4e-4, "step_size_up": 5, "step_size_down": 8, "mode": "triangular2"}),
    ("CyclicLR", {"base_lr": 1e-5, "max_lr": 4e-4, "step_size_up": 5, "mode": "exp_range", "gamma": 0.98}),
]


@pytest.mark.parametrize(("name", "arguments"), CLASSES, ids=[f"{n}-{i}" for i, (n, _) in enumerate(CLASSES)])
def test_a_class_of_torch_has_torchs_rates(name: str, arguments: dict[str, Any]) -> None:
    lines = "\n".join(f"{key} = {value!r}" for key, value in arguments.items())
    ours = Custom(class_name=f"torch.optim.lr_scheduler.{name}", arguments=lines)
    assert list(SCHEDULES["custom"].problems(ours)) == []
    momentum = {"cycle_momentum": False} if name in ("OneCycleLR", "CyclicLR") else {}
    expected = of_torch(getattr(torch.optim.lr_scheduler, name), **(arguments | momentum))
    assert rates(ours) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    after_warmup = rates(ours.model_copy(update={"warmup_steps": 4}), STEPS + 4)
    assert after_warmup[:4] == [0.25, 0.5, 0.75, 1.0]
    assert after_warmup[4:] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_placeholders_stand_for_the_facts_of_the_run() -> None:
    arguments = "max_lr = 4 * %LR%\nepochs = %EPOCHS%\nsteps_per_epoch = %STEPS_PER_EPOCH%\nanneal_strategy = cos"
    ours = Custom(class_name="OneCycleLR", arguments=arguments)
    expected = of_torch(torch.optim.lr_scheduler.OneCycleLR, 60, max_lr=4 * RATE, total_steps=60, cycle_momentum=False)
    assert rates(ours, epochs=6) == pytest.approx(expected[:60])
    halved = Custom(class_name="MultiStepLR", arguments="milestones = [%SCHEDULER_STEPS% / 2, 70]", warmup_steps=10)
    assert rates(halved, 110)[59:62] == pytest.approx([1.0, 0.1, 0.1])


@pytest.mark.parametrize(
    ("class_name", "arguments", "field", "words"),
    [
        ("", "", "class_name", "No class is given: supported are"),
        ("torch.optim.lr_scheduler.ReduceLROnPlateau", "", "class_name", "OneCycleLR, CyclicLR"),
        ("os.StepLR", "", "class_name", "'os.StepLR' is not supported"),
        ("StepLR", "", "arguments", "StepLR needs the argument step_size"),
        ("StepLR", "step_size = 5\nspeed = 3", "arguments", "no argument speed"),
        ("StepLR", "step_size", "arguments", "should be name = value"),
        ("StepLR", "step_size = 0", "arguments", "zero"),
        ("StepLR", "step_size = soon", "arguments", "not of the right kind"),
        ("StepLR", "step_size = __import__('os').getpid()", "arguments", "cannot be used"),
        ("ExponentialLR", "gamma = 1000", "arguments", "too large"),
        ("CosineAnnealingWarmRestarts", "T_0 = 1\nT_mult = 1.0000001", "arguments", "whole numbers"),
        ("CyclicLR", "base_lr = 0\nmax_lr = 1\nscale_fn = x", "arguments", "no argument scale_fn"),
    ],
)
def test_what_a_class_cannot_use_is_named(class_name: str, arguments: str, field: str, words: str) -> None:
    (problem,) = SCHEDULES["custom"].problems(Custom(class_name=class_name, arguments=arguments))
    assert problem.path == field
    assert words in problem.message


def test_schedules_of_transformers() -> None:
    def of(schedule: Any, **arguments: Any) -> list[float]:
        return of_torch(lambda optimizer: schedule(optimizer, **arguments))

    warmup: dict[str, Any] = {"num_warmup_steps": 8}
    polynomial: dict[str, Any] = {"num_training_steps": 60, "lr_end": RATE / 10, "power": 2.5}
    wsd: dict[str, Any] = {"num_decay_steps": 13, "num_stable_steps": 39, "min_lr_ratio": 0.1}
    expected = of(optimization.get_inverse_sqrt_schedule, **warmup)
    assert rates(InverseSqrt(warmup_steps=8))[8:] == pytest.approx(expected[8:])
    expected = of(optimization.get_inverse_sqrt_schedule, num_warmup_steps=0, timescale=20)
    assert rates(InverseSqrt(timescale_steps=20)) == pytest.approx(expected)
    expected = of(optimization.get_polynomial_decay_schedule_with_warmup, **warmup, **polynomial)
    assert rates(Polynomial(warmup_steps=8, power=2.5, min_factor=0.1))[8:] == pytest.approx(expected[8:])
    for shape in ("linear", "cosine"):
        expected = of(optimization.get_wsd_schedule, **warmup, **wsd, decay_type=shape)
        ours = WarmupStableDecay(warmup_steps=8, min_factor=0.1, decay_share=0.25, decay_shape=shape)
        assert rates(ours)[8:] == pytest.approx(expected[8:]), shape
    falling = rates(WarmupStableDecay(decay_share=0.5, decay_shape="sqrt"), 100)
    assert falling[75] == pytest.approx(1 - math.sqrt(0.5))


def test_points_are_joined_by_lines_curves_or_steps() -> None:
    def at(progress: float, between: str, points: str = "0.2:1, 0.6:2, 1:0") -> float:
        settings = Points.model_validate({"points": points, "between": between})
        return learning_rate_factor(settings, step=round(1000 * progress), total_steps=1000)

    assert [at(p, "linear") for p in (0, 0.2, 0.3, 0.6, 0.8, 1)] == pytest.approx([1, 1, 1.25, 2, 1, 0])
    assert [at(p, "hold") for p in (0, 0.2, 0.3, 0.6, 0.8, 1)] == pytest.approx([1, 1, 1, 2, 2, 0])
    assert at(0.4, "smooth") == pytest.approx(1.5)
    assert at(0.21, "smooth") - 1 < 0.1 * (at(0.21, "linear") - 1)
    assert {at(p, "smooth", "0.5:0.3") for p in (0, 0.5, 1)} == {0.3}


@pytest.mark.parametrize("text", ["", "0", "0:a", "0:1, 0:2", "0.5:1, 0.4:1", "2:1", "0:-1", "0:nan", "0:1," * 300])
def test_points_that_are_not_valid_are_refused(text: str) -> None:
    (problem,) = SCHEDULES["points"].problems(Points(points=text))
    assert problem.message.startswith("The points are not valid: ")
    with pytest.raises(DarkroomError, match="The schedule Points has no learning rate at step 0 of 10"):
        learning_rate_factor(Points(points=text), step=0, total_steps=10)


def test_an_expression_knows_the_run() -> None:
    def value(text: str) -> float:
        settings = Expression(expression=text, warmup_steps=20)
        return learning_rate_factor(settings, step=60, total_steps=100, epochs=5)

    facts = {"step": 60, "total_steps": 100, "warmup": 20, "epoch": 3, "epochs": 5, "progress": 0.5}
    assert {name: value(name) for name in facts} == facts
    assert value("max(0.1, 1 - 0.25 * floor(epoch)) if epoch >= 1 else 1") == 0.25
    assert value("1 - progress * 4") == 0.0  # never below 0
    assert rates(Expression()) == pytest.approx(rates(SCHEDULES["cosine"].settings()))


def test_a_value_that_an_expression_lacks_at_one_step_is_an_error_that_names_the_step() -> None:
    settings = Expression(expression="1 / (step - 3)")
    assert list(SCHEDULES["expression"].problems(settings)) == []
    with pytest.raises(DarkroomError, match="Expression has no learning rate at step 3 of 10: it divides by zero"):
        rates(settings, 10)


def test_a_preview_has_the_first_and_the_last_step() -> None:
    points = factors_over_run(lambda step: float(step), 1001, num_points=11)
    assert points == [(s, float(s)) for s in range(0, 1001, 100)]
    assert factors_over_run(lambda step: 1.0, 1) == [(0, 1.0)]
