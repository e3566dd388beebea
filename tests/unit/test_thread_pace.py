"""Fewer CPU threads on a busy machine, decided with made-up times; and what a run reports of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace as Namespace
from typing import Any

import pytest

from modules.config.schema import Config
from modules.system.devices import Device
from modules.system.ranks import Rank
from tests.builders.configs import laid_over
from trainer.callbacks.cpu_threads import AvailableCores, CpuThreads
from trainer.events import Event, WarningRaised
from trainer.run.threads import may_change_threads
from trainer.step.callback import StepView
from trainer.step.counters import Counters
from trainer.step.stepper import StepOutcome
from trainer.step.thread_pace import ThreadPace

FREE = {1: 1.0, 2: 0.55, 4: 0.3}
BUSY = {1: 1.1, 2: 6.0, 4: 9.0}


def _steps(pace: ThreadPace, num_steps: int, seconds: dict[int, float], cores: float) -> list[int]:
    """Return the number of threads of each of some steps that take `seconds` by their number of threads."""
    counts = []
    for _ in range(num_steps):
        counts.append(pace.num_threads)
        pace.after_step(seconds[pace.num_threads], cores)
    return counts


def test_nothing_changes_on_a_quiet_machine() -> None:
    assert set(_steps(ThreadPace(2), 1000, FREE, 2.0)) == {2}


@pytest.mark.parametrize("wobble", [0.9, 1.1, 1.3])
def test_images_of_other_sizes_are_no_sign_of_a_busy_machine(wobble: float) -> None:
    pace = ThreadPace(2)
    for number in range(300):
        pace.after_step(0.5 * (wobble if number % 3 else 1), 2.0)
        assert pace.num_threads == 2


def test_a_run_beside_other_work_takes_fewer_threads_and_more_again_when_it_is_free() -> None:
    pace = ThreadPace(2)
    _steps(pace, 20, FREE, 2.0)
    busy = _steps(pace, 60, BUSY, 1.1)
    assert busy[0] == 2
    assert busy.count(2) <= 6  # until it is noticed, and never again while the other work goes on
    assert pace.num_threads == 1
    assert _steps(pace, 30, FREE, 2.0)[-1] == 2


def test_work_that_is_there_from_the_first_step_is_noticed_too() -> None:
    counts = _steps(ThreadPace(2), 30, BUSY, 1.0)
    assert counts[:6] == [2] * 6  # the first step does not count, five do
    assert set(counts[6:]) == {1}


def test_a_slow_down_that_the_system_does_not_show_is_tried_as_well() -> None:
    """A container sees the cores of its machine, but gets fewer of them."""
    pace = ThreadPace(4)
    _steps(pace, 20, FREE, 4.0)
    assert 1 in _steps(pace, 40, BUSY, 4.0)


def test_fewer_threads_that_do_not_pay_are_given_up_and_tried_less_and_less() -> None:
    """Programs of low priority use the cores, and give them back at once."""
    counts = _steps(ThreadPace(2), 2000, FREE, 1.0)
    starts = [n for n, (former, now) in enumerate(pairwise(counts)) if (former, now) == (2, 1)]
    gaps = [after - before for before, after in pairwise(starts)]
    assert gaps == sorted(gaps)
    assert counts.count(1) < 0.02 * len(counts)


def test_one_thread_stays_one() -> None:
    assert set(_steps(ThreadPace(1), 50, BUSY, 0.1)) == {1}


def _view(seconds: float, num_images: int) -> StepView:
    outcome = StepOutcome(0.1, 1.0, num_images, was_skipped=False, learning_rates={})
    return StepView(Counters(0), Counters(1), outcome, seconds, 100, ("unet",))


def _run(seconds: Callable[[int, int], float], cores: Callable[[int], float]) -> tuple[list[int], list[Event]]:
    """Return the changes of the number of threads in a run of 100 steps, and its events."""
    used, events, step = [2], list[Event](), 0
    threads = CpuThreads(2, events.append, available_cores=lambda: cores(step), use=used.append)
    for step in range(100):
        num_images = 1 + step % 3
        threads.after_step(_view(seconds(step, used[-1]) * num_images, num_images))
    return used[1:], events


def test_the_change_is_reported_once() -> None:
    def is_busy(step: int) -> bool:
        return 30 <= step < 60

    used, events = _run(
        lambda step, n: (BUSY if is_busy(step) else FREE)[n], lambda step: 1.0 if is_busy(step) else 2.0
    )
    assert used == [1, 2]
    [event] = events
    assert isinstance(event, WarningRaised)
    assert "1 CPU thread" in event.message


def test_a_trial_that_does_not_pay_is_not_reported() -> None:
    used, events = _run(lambda step, n: FREE[n], lambda step: 1.0)
    assert used[:2] == [1, 2]
    assert events == []


def test_the_cores_of_this_process_are_available_to_it() -> None:
    cores = AvailableCores()
    sum(range(100_000))
    assert cores() >= 0.0


@pytest.mark.parametrize(
    ("changes", "device", "num_threads", "world_size", "may_change"),
    [({}, "cpu", 2, 1, True), ({}, "cpu", 1, 1, False), ({}, "cuda", 2, 1, False), ({}, "cpu", 2, 2, False),
     ({"general": {"deterministic": True}}, "cpu", 2, 1, False), ({"general": {"num_threads": 2}}, "cpu", 2, 1, False),
     ({"model": {"compile": True}}, "cpu", 2, 1, False)],
)  # fmt: skip
def test_a_deterministic_run_keeps_its_number(
    changes: dict[str, Any], device: str, num_threads: int, world_size: int, may_change: bool
) -> None:
    """So does one whose number is set, and one with compiled code, which is made for a number."""
    ranks = Namespace(rank=Rank(0, world_size, 0, world_size))
    machine: Any = Namespace(train_device=Device(device), ranks=ranks)
    assert may_change_threads(laid_over(Config(), changes), machine, num_threads) == may_change
