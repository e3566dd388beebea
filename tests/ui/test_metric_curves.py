"""The curves of what a method reports, without a window."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from modules.objectives.metrics import METRICS
from tests.ui.fake_engine import step
from trainer.rollout_events import RolloutSampled, SampledImage
from ui.features.run.facts import describe_image, rollout_line
from ui.loop.folding import fold, history_before, prepend_history
from ui.loop.metric_curves import (
    MAX_METRIC_POINTS,
    MetricCurve,
    gradient_norms,
    has_method_metrics,
    metric_label,
    metric_tip,
    rate_metrics,
    short_number,
    shown_names,
    smooth,
    with_metrics,
)
from ui.loop.run_state import RunState


def steps_of(state: RunState, name: str) -> list[int]:
    return [number for number, _ in state.metrics[name].points]


@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_long_curve_keeps_its_course_whichever_steps_report_it(every: int) -> None:
    """A method with inner epochs reports its reward at every second step only."""
    curve, last = MetricCurve(), 4001 - 4000 % every
    for number in range(1, last + 1, every):
        curve = curve.add(number, float(number))
    steps = [number for number, _ in curve.points]
    assert MAX_METRIC_POINTS // 2 <= len(steps) <= MAX_METRIC_POINTS
    assert (steps[0], steps[-1]) == (1, last - (last - 1) % every)
    assert len({b - a for a, b in pairwise(steps[:-1])}) == 1
    assert all(value == number for number, value in curve.points)


def test_unknown_names_and_values_that_are_not_finite_are_left_out() -> None:
    curves = with_metrics({}, 3, {"reward": 0.5, "kl": math.nan, "ratio": math.inf, "unheard_of": 1.0})
    assert list(curves) == ["reward"]
    assert with_metrics(curves, 4, {}) is curves


def test_only_reported_metrics_are_shown_in_the_order_of_their_records() -> None:
    one = with_metrics({}, 1, {"kl": 0.1, "reward": 1.0, "reward/pickscore": 1.0})
    assert shown_names(one) == ["reward", "kl"]  # the only reward model's score is the reward
    two = with_metrics(one, 2, {"reward/aesthetic": 5.0})
    assert shown_names(two) == ["reward", "reward/aesthetic", "reward/pickscore", "kl"]
    assert [metric_label(name) for name in shown_names(two)][1:3] == ["Reward: Aesthetic (LAION)", "Reward: PickScore"]


def test_gradient_norms_have_a_curve_for_each_part_where_there_are_several() -> None:
    one = replace(step(1), gradient_norm=0.5, gradient_norms={"unet": 0.5})
    assert shown_names(with_metrics({}, 1, gradient_norms(one))) == ["gradient_norm"]
    two = replace(step(2), gradient_norm=0.5, gradient_norms={"unet": 0.4, "text_encoder": 0.3})
    labels = [metric_label(name) for name in shown_names(with_metrics({}, 2, gradient_norms(two)))]
    assert not has_method_metrics(with_metrics({}, 1, gradient_norms(one)))  # the loss stays in front
    assert labels == ["Gradient norm", "Gradient norm: Text encoder", "Gradient norm: UNet"]


def test_a_tip_says_what_a_curve_means_which_way_is_good_and_its_limits() -> None:
    curve = MetricCurve().add(1, 0.5).add(2, 0.75)
    tip = metric_tip("implicit_accuracy", curve)
    assert tip.startswith(METRICS["implicit_accuracy"].help)
    assert tip.endswith("Higher is better. Always between 0 and 1.\nSo far 0.5 to 0.75.")
    assert all(metric_tip(name, curve) for name in METRICS)


def test_the_moving_average_follows_a_long_course_only() -> None:
    assert smooth([(n, 1.0) for n in range(5)]) == []
    course = smooth([(n, float(n % 2)) for n in range(200)])
    assert [number for number, _ in course] == list(range(200))
    assert abs(course[-1][1] - 0.5) < 0.1


def test_a_resumed_run_continues_its_curves_and_keeps_its_rollout() -> None:
    rollout = RolloutSampled(3, (SampledImage("a.png", "a cat", 1.0),))
    events = [*(step(n, metrics={"reward": n / 10}) for n in range(1, 7)), rollout, RolloutSampled(9, ())]
    before = history_before(events, until_step=4)
    now = RunState()
    for number in (5, 6):
        now = fold(now, step(number, metrics={"reward": 9.0, "kl": 0.1}), 0.0)
    state = prepend_history(before, now)
    assert steps_of(state, "reward") == [1, 2, 3, 4, 5, 6]
    assert state.metrics["reward"].points[-2:] == ((5, 9.0), (6, 9.0))
    assert steps_of(state, "kl") == [5, 6]
    assert state.rollout == rollout
    assert prepend_history(before, fold(now, RolloutSampled(5, ()), 0.0)).rollout == RolloutSampled(5, ())


def test_numbers_and_rollouts_as_text() -> None:
    assert [short_number(v) for v in (0.0, 0.7123, 21.43, 3.1e-5, -2.0)] == ["0", "0.712", "21.4", "3.1e-5", "-2"]
    image = SampledImage("a.png", "a  cat", 0.5, {"pickscore": 21.0, "brightness": 0.25}, "best")
    assert describe_image(image) == "a cat\nReward 0.5000, best of its prompt\nPickScore 21.0000   Brightness 0.2500"
    assert describe_image(SampledImage("a.png", "a cat")) == "a cat\nNo score"
    rollout = RolloutSampled(7, (image, SampledImage("b.png", "a dog", math.nan), SampledImage("c.png", "a dog", 1.0)))
    assert rollout_line(rollout) == "Step 8: 3 images of 2 prompts, mean reward 0.75"


def test_effective_rates_are_one_curve_where_they_are_equal() -> None:
    assert rate_metrics({"unet": 1e-4, "text_encoder": 1e-4}) == {"effective_rate": 1e-4}
    apart = rate_metrics({"unet": 1e-4, "text_encoder": 1e-5})
    assert apart == {"effective_rate/unet": 1e-4, "effective_rate/text_encoder": 1e-5}
    assert shown_names(with_metrics({}, 1, apart)) == sorted(apart)
    assert metric_label("effective_rate/unet") == "Effective learning rate: UNet"
    assert rate_metrics({}) == {}
