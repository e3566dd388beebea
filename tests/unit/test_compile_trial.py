"""The choice of compiled blocks: its rule, and the trial that measures steps, on a clock of the test."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.data.buckets import Size
from modules.memory.compiled_blocks import CompileCounts
from trainer.callbacks.compile_trial import CompileTimes, CompileTrial, StepSize, may_pay, pays, read_choice
from trainer.step.callback import StepView
from trainer.step.counters import Counters
from trainer.step.outcome import StepOutcome

seconds = st.floats(0.001, 100)
costs = st.floats(0, 10_000)
steps = st.integers(0, 100_000)
times = st.builds(CompileTimes, seconds, seconds, costs, steps)


@given(times)
def test_what_is_not_faster_never_pays(given: CompileTimes) -> None:
    if pays(given):
        assert given.compiled < given.plain
        assert given.steps_left > 0
        assert given.compiled * given.steps_left + given.compile_seconds <= given.plain * given.steps_left * (1 + 1e-9)


@given(times, st.integers(0, 1000), st.floats(0, 100))
def test_more_steps_and_cheaper_compiling_never_change_a_yes(given: CompileTimes, more: int, less: float) -> None:
    if pays(given):
        assert pays(CompileTimes(given.plain, given.compiled, given.compile_seconds, given.steps_left + more))
        cheaper = max(0.0, given.compile_seconds - less)
        assert pays(CompileTimes(given.plain, given.compiled, cheaper, given.steps_left))


@given(seconds, costs, steps, st.floats(0.751, 2.0))
def test_what_cannot_pay_does_not(plain: float, cost: float, left: int, factor: float) -> None:
    """A gain below the largest published one never pays where that one would not."""
    if not may_pay(plain, cost, left):
        assert not pays(CompileTimes(plain, plain * factor, cost, left))


class Blocks:
    """Compiles one graph for each size, when a step of it runs compiled; 5 seconds each."""

    def __init__(self, *, failure: str = "") -> None:
        self.is_on, self.failure, self.would_fail = False, "", failure
        self.sizes: set[StepSize] = set()

    @property
    def counts(self) -> CompileCounts:
        return CompileCounts(1, len(self.sizes), 5.0 * len(self.sizes))

    def turn_on(self) -> None:
        self.is_on = True

    def turn_off(self) -> None:
        self.is_on = False

    def run(self, size: StepSize, plain: float, compiled: float) -> float:
        """Run a step, and return its seconds."""
        if not self.is_on:
            return plain
        if self.would_fail:
            self.failure = self.would_fail
            return plain
        is_new = size not in self.sizes
        self.sizes.add(size)
        return compiled + 5.0 * is_new


SMALL, LARGE = ((Size(64, 64), 1),), ((Size(128, 64), 1),)


def trained(
    path: Path,
    compiled: float,
    *,
    blocks: Blocks | None = None,
    first: int = 0,
    stop: int = 60,
    total: int = 2000,
) -> tuple[list[bool], list[str], Blocks]:
    """Run steps of two sizes in turn, with 1 and 2 seconds; return whether each ran compiled, and the sentences."""
    said: list[Any] = []
    blocks = blocks or Blocks()
    epoch = [SMALL, LARGE] * 1000
    trial = CompileTrial(
        blocks,  # type: ignore[arg-type]
        path=path,
        first_step=first,
        total_steps=total,
        sizes=lambda _: epoch,
        emit=said.append,
    )
    ran = []
    for step in range(first, stop):
        ran.append(blocks.is_on)
        seconds = blocks.run(epoch[step], 1.0 + step % 2, compiled * (1 + step % 2))
        before, now = Counters(step, 0, step), Counters(step + 1, 0, step + 1)
        outcome = StepOutcome(0.1, 0.1, 1, False, {})
        assert trial.is_due(before, now) or path.exists()
        trial.after_step(StepView(before, now, outcome, seconds, 2000, ()))
    return ran, [event.summary for event in said], blocks


def test_the_faster_way_stays(tmp_path: Path) -> None:
    ran, said, _ = trained(tmp_path / "a.json", 0.8)
    assert ran == [False] * 12 + [True] * 48
    assert said == [
        "The denoiser's blocks are compiled: a step takes 1.2 s compiled and 1.5 s without (20 % less), compiling "
        "has taken 10 s and will take 0 s more, and 1,980 steps are left."
    ]
    ran, said, _ = trained(tmp_path / "b.json", 1.2)
    assert ran == [False] * 12 + [True] * 8 + [False] * 40
    assert len(said) == 1
    assert "not compiled: a step takes 1.8 s compiled and 1.5 s without (20 % more)" in said[0]


@pytest.mark.parametrize("compiled", [0.8, 1.2])
@pytest.mark.parametrize("resumed_at", [5, 14, 20, 40])
def test_a_resumed_run_runs_each_step_the_same_way(tmp_path: Path, compiled: float, resumed_at: int) -> None:
    whole, _, _ = trained(tmp_path / "a.json", compiled)
    again, said, _ = trained(tmp_path / "a.json", 1.0, first=resumed_at)
    assert again == whole[resumed_at:]
    assert not said  # it has chosen already


def test_a_run_stopped_before_the_choice_measures_again(tmp_path: Path) -> None:
    trained(tmp_path / "a.json", 0.8, stop=10)
    assert read_choice(tmp_path / "a.json") is None
    ran, said, _ = trained(tmp_path / "a.json", 0.8, first=10)
    assert ran == [False] * 12 + [True] * 38
    assert len(said) == 1


def test_a_run_that_ended_while_it_was_measured_compiled_is_resumed_without(tmp_path: Path) -> None:
    """Compiled steps may be what it ended with: out of memory, for example."""
    ran, said, _ = trained(tmp_path / "a.json", 0.8, stop=13)
    assert ran[-1]
    assert not said
    ran, said, _ = trained(tmp_path / "a.json", 0.8, first=10)
    assert not any(ran)
    assert not said


def test_a_short_run_never_compiles(tmp_path: Path) -> None:
    """Two sizes of an assumed minute each: 120 s, with at most a quarter of 1.5 s saved in each step."""
    ran, said, _ = trained(tmp_path / "a.json", 0.1, total=300)
    assert not any(ran)
    assert said == ["The denoiser's blocks are not compiled: with 288 steps left, compiling cannot pay."]
    ran, _, _ = trained(tmp_path / "b.json", 0.8, total=400)
    assert any(ran)


def test_a_failure_is_a_choice(tmp_path: Path) -> None:
    ran, said, _ = trained(tmp_path / "a.json", 0.8, blocks=Blocks(failure="it needs a working Triton"))
    assert sum(ran) == 1
    assert said == ["The denoiser's blocks are not compiled: they cannot be compiled: it needs a working Triton."]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"compiled_from": "x", "chosen_at": 1, "is_compiled": true}'])
def test_a_broken_file_is_no_choice(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    assert read_choice(path) is None
    assert read_choice(tmp_path / "none.json") is None


def test_nothing_is_due_after_the_choice_but_its_steps(tmp_path: Path) -> None:
    trained(tmp_path / "a.json", 0.8)
    trial = CompileTrial(
        SimpleNamespace(failure="", turn_on=lambda: None, turn_off=lambda: None),  # type: ignore[arg-type]
        path=tmp_path / "a.json",
        first_step=0,
        total_steps=100,
        sizes=lambda _: [],
        emit=lambda _: None,
    )
    due = [step for step in range(60) if trial.is_due(Counters(step), Counters(step + 1))]
    assert due == [11, 19]
