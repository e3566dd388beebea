"""When something is due: multiples are counted, and nothing else is remembered."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from modules.settings.every import Every, Moment, Unit

START = Moment(0, 0, 0.0)


def at(step: int = 0, epoch: int = 0, seconds: float = 0.0) -> Moment:
    return Moment(step, epoch, seconds)


@given(n=st.integers(1, 50), steps=st.integers(0, 200))
def test_due_steps_are_the_multiples(n: int, steps: int) -> None:
    every = Every(n=n, unit="step")
    due = [s for s in range(1, steps + 1) if every.is_due(at(step=s - 1), at(step=s))]
    assert due == [s for s in range(1, steps + 1) if s % n == 0]


@given(n=st.fractions(min_value=Fraction(1, 100), max_value=20, max_denominator=100), steps=st.integers(1, 100))
def test_fractional_periods_count_their_multiples(n: Fraction, steps: int) -> None:
    every = Every(n=float(n), unit="epoch")
    for epoch in range(1, steps + 1):
        has_multiple = math.floor(epoch / n) > math.floor((epoch - 1) / n)
        assert every.is_due(at(epoch=epoch - 1), at(epoch=epoch)) == has_multiple


@given(n=st.integers(1, 30), cuts=st.lists(st.integers(1, 99), max_size=4), unit=st.sampled_from(["step", "epoch"]))
def test_a_run_cut_anywhere_has_the_same_due_moments(n: int, cuts: list[int], unit: Unit) -> None:
    """Each piece begins from its counters alone, as a resumed run does."""
    every = Every(n=n, unit=unit)

    def due(first: int, last: int) -> list[int]:
        return [s for s in range(first + 1, last + 1) if every.is_due(at(s - 1, s - 1), at(s, s))]

    edges = [0, *sorted(cuts), 100]
    pieces = [s for first, last in itertools.pairwise(edges) for s in due(first, last)]
    assert pieces == due(0, 100)


@pytest.mark.parametrize(("unit", "seconds"), [("second", 1), ("minute", 60), ("hour", 3600)])
def test_times_count_training_seconds(unit: Unit, seconds: float) -> None:
    every = Every(n=2, unit=unit)
    assert not every.is_due(START, at(step=5, seconds=2 * seconds - 0.5))
    assert every.is_due(at(step=5, seconds=2 * seconds - 0.5), at(step=6, seconds=2 * seconds + 0.5))
    assert not every.is_due(at(seconds=2 * seconds), at(seconds=4 * seconds - 0.5))


def test_several_multiples_at_once_are_one_occasion() -> None:
    assert Every(n=10, unit="second").is_due(START, at(step=1, seconds=95.0))


def test_epochs_do_not_look_at_steps() -> None:
    every = Every(n=1, unit="epoch")
    assert not every.is_due(at(step=4, epoch=1), at(step=5, epoch=1))
    assert every.is_due(at(step=5, epoch=1), at(step=6, epoch=2))


@pytest.mark.parametrize("never", [Every(), Every(n=3, unit="never"), Every(n=0, unit="step"), Every(n=0, unit="hour")])
def test_never(never: Every) -> None:
    assert never.is_never
    assert str(never) == "never"
    assert not never.is_due(START, at(10**9, 10**9, 1e12))
    assert not never.is_over(at(10**9, 10**9, 1e12))


def test_a_span_is_over_once_it_has_passed_and_stays_over() -> None:
    span = Every(n=3, unit="epoch")
    assert [span.is_over(at(epoch=e)) for e in range(6)] == [False, False, False, True, True, True]
    assert Every(n=1.5, unit="minute").is_over(at(seconds=90.0))
    assert not Every(n=1.5, unit="minute").is_over(at(seconds=89.9))


@example(n=5e-324, unit="step")
@given(n=st.floats(0, allow_infinity=False, allow_nan=False), unit=st.sampled_from(["step", "epoch", "second", "hour"]))
def test_any_period_that_a_file_can_hold_can_be_asked(n: float, unit: Unit) -> None:
    """A period of 5e-324 steps used to overflow."""
    every = Every(n=n, unit=unit)
    every.is_due(START, at(1000, 1000, 1000.0))
    every.is_over(at(1000, 1000, 1000.0))
    assert str(every)


def test_words() -> None:
    assert str(Every(n=1, unit="epoch")) == "every epoch"
    assert str(Every(n=30, unit="minute")) == "every 30 minutes"
    assert str(Every(n=0.5, unit="hour")) == "every 0.5 hours"
    assert str(Every(n=2_500_000, unit="step")) == "every 2,500,000 steps"  # was 2.5e+06


@pytest.mark.parametrize(
    "values", [{"n": -1}, {"n": float("nan")}, {"n": float("inf")}, {"unit": "week"}, {"n": 1, "unit": "step", "x": 1}]
)
def test_an_invalid_period_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Every.model_validate(values)
