"""Commands: left on the desk by any thread, picked up by the training thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.strategies import garbage
from trainer.commands import (
    COMMAND_TYPES,
    BackupNow,
    CommandDesk,
    Pause,
    ProfileNow,
    Resume,
    SampleNow,
    SaveNow,
    Stop,
    StopRequested,
    ValidateNow,
    from_line,
    to_line,
)

STEP_COMMANDS = (SampleNow, ValidateNow, BackupNow, SaveNow, ProfileNow)


# -- lines


@pytest.mark.parametrize("kind", COMMAND_TYPES.values())
def test_every_command_comes_back_as_it_was(kind: type) -> None:
    assert from_line(to_line(kind())) == kind()
    assert from_line(to_line(kind()) + "\n") == kind()


def test_a_pause_that_frees_memory_comes_back_as_it_was() -> None:
    assert from_line(to_line(Pause(free_memory=True))) == Pause(free_memory=True)
    assert from_line('{"command": "Pause", "free_memory": "yes"}') == Pause()


@pytest.mark.parametrize(
    "line",
    ["", "stop", "null", "[]", "3", "{}", '{"command": "Explode"}', '{"command": null}', '{"command": ["Stop"]}',
     '{"command": "Stop"', '{"Stop": 1}', "[" * 100_000, "9" * 5000],
    ids=lambda line: line[:30],
)  # fmt: skip
def test_any_other_line_is_none(line: str) -> None:
    assert from_line(line) is None


@given(whole=garbage, text=st.text())
def test_garbage_never_raises(whole: object, text: str) -> None:
    assert from_line(text) is None
    from_line(json.dumps(whole))
    assert from_line(json.dumps({"command": "Stop", "extra": whole})) == Stop()


# -- the desk


def test_an_empty_desk_lets_pass() -> None:
    desk = CommandDesk()
    desk.check()
    assert not desk.is_paused
    assert not desk.is_stop_requested
    assert not any(desk.take(kind) for kind in STEP_COMMANDS)


def test_a_stop_is_raised_again_and_again_and_nothing_takes_it_back() -> None:
    desk = CommandDesk()
    desk.put(Stop())
    for command in (Resume(), Pause(), SampleNow()):
        with pytest.raises(StopRequested):
            desk.check()
        desk.put(command)
    with pytest.raises(StopRequested):
        desk.check()
    assert desk.is_stop_requested
    assert not desk.is_paused, "a run that is to stop does not wait"


@pytest.mark.parametrize("kind", STEP_COMMANDS)
def test_what_is_taken_is_gone(kind: type) -> None:
    desk = CommandDesk()
    desk.put(kind())
    desk.put(kind())
    others = [k for k in STEP_COMMANDS if k is not kind]
    assert not any(desk.take(other) for other in others)
    assert desk.take(kind)
    assert not desk.take(kind)


def test_a_pause_taken_back_at_once_is_reported_once_and_not_waited_for() -> None:
    """Without a report a window whose Pause was taken back on the page showed "Pausing" over a run that trained."""
    desk, reported = CommandDesk(), list[bool]()
    desk.on_pause = reported.append
    desk.put(Pause())
    assert desk.is_paused
    desk.put(Resume())
    desk.check()
    desk.check()
    assert reported == [True, False]
    desk.put(Pause())
    desk.put(Resume())
    desk.put(Stop())
    with pytest.raises(StopRequested):
        desk.check()
    assert reported == [True, False], "the stop is what is reported"


class Waiter:
    """A thread that waits at the desk, synchronized by events and not by the clock."""

    def __init__(self, desk: CommandDesk) -> None:
        self.reported: list[bool] = []
        self.outcome: object = None
        self._waits = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(desk,), daemon=True)
        self._thread.start()
        assert self._waits.wait(120)

    def _run(self, desk: CommandDesk) -> None:
        desk.on_pause = self._report
        try:
            desk.check()
        except StopRequested:
            self.outcome = "stopped"
        else:
            self.outcome = "continued"

    def _report(self, waits: bool) -> None:
        self.reported.append(waits)
        self._waits.set()

    def join(self) -> object:
        self._thread.join(120)
        assert not self._thread.is_alive()
        return self.outcome

    @property
    def is_offloaded(self) -> bool:
        return self._thread.is_alive()


@pytest.mark.parametrize(("command", "outcome"), [(Resume(), "continued"), (Stop(), "stopped")])
def test_a_paused_run_is_woken(command: Resume | Stop, outcome: str) -> None:
    desk = CommandDesk()
    desk.put(Pause())
    waiter = Waiter(desk)
    for other in (SampleNow(), Pause()):
        desk.put(other)
        assert waiter.is_offloaded
    desk.put(command)
    assert waiter.join() == outcome
    assert waiter.reported == [True, False]
    assert desk.take(SampleNow), "what was asked for in the pause is done after it"


def test_all_who_wait_are_woken() -> None:
    desk = CommandDesk()
    desk.put(Pause())
    waiters = [Waiter(desk) for _ in range(3)]
    desk.put(Stop())
    assert [w.join() for w in waiters] == ["stopped"] * 3


def test_a_command_can_be_left_by_a_signal_that_interrupts_the_desk_itself() -> None:
    """A signal handler runs on the very thread that holds the desk."""
    desk = CommandDesk()
    with desk._changed:
        desk.put(Stop())
    assert desk.is_stop_requested


def test_no_command_of_many_threads_is_lost() -> None:
    desk, count = CommandDesk(), 200
    barrier = threading.Barrier(5)
    taken: list[int] = []

    def put(kind: Callable[[], SampleNow | SaveNow]) -> None:
        barrier.wait()
        for _ in range(count):
            desk.put(kind())

    def take() -> None:
        barrier.wait()
        taken.append(sum(desk.take(SampleNow) for _ in range(count)))

    threads = [threading.Thread(target=put, args=(k,)) for k in (SampleNow, SampleNow, SaveNow)]
    threads += [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = desk.take(SampleNow)
    assert 1 <= sum(taken) + left <= 2 * count
    assert desk.take(SaveNow)


def test_memory_is_free_for_as_long_as_the_newest_pause_frees_it() -> None:
    desk, course = CommandDesk(), []

    @contextmanager
    def freed() -> Iterator[None]:
        course.append("freed")
        desk.put(Pause())  # as a user who changes their mind while the run waits
        yield
        course.append("back")
        desk.put(Resume())

    desk.freed_memory = freed
    desk.put(Pause(free_memory=True))
    desk.check()
    assert course == ["freed", "back"]
    desk.freed_memory = lambda: pytest.fail("a plain pause keeps the memory")
    desk.put(Pause())
    Waiter(desk)
    desk.put(Resume())
