"""What the processes of a run do together beside its steps, whatever becomes of their parts."""

from __future__ import annotations

import errno
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from modules.system.errors import DarkroomError
from modules.system.ranks import Rank
from trainer.commands import CommandDesk, Stop, StopAgreed, StopRequested
from trainer.ranks import LostProcessError, OneProcess, lost_process_error
from trainer.step.meeting import Meeting, meeting_of_one


class Thread(OneProcess):
    """One of two processes: threads that exchange values at a barrier."""

    def __init__(self, index: int, barrier: threading.Barrier, box: dict[int, Any]) -> None:
        self.rank = Rank(index, 2)
        self._barrier, self._box = barrier, box

    def gather(self, value: Any) -> list[Any]:
        self._box[self.rank.index] = value
        self._barrier.wait(120)
        found = [self._box[0], self._box[1]]
        self._barrier.wait(120)
        return found

    def sums(self, values: Sequence[float]) -> list[float]:
        return [sum(pair) for pair in zip(*self.gather(list(values)), strict=True)]

    def from_main(self, value: Any) -> Any:
        return self.gather(value)[0]


def met(main: Callable[[Meeting], Any], task: Callable[[Meeting, int], Any], *, stops: int | None = None) -> list[Any]:
    """Return what the main process and the other one end with, which holds one meeting and then serves."""
    barrier, box = threading.Barrier(2), dict[int, Any]()
    ended: list[Any] = [None, None]

    def process(index: int) -> None:
        desk = CommandDesk()
        if stops == index:
            desk.put(Stop())
        meeting = Meeting(Thread(index, barrier, box), desk=desk)
        meeting.offer("task", lambda given: task(meeting, given))
        try:
            ended[index] = main(meeting) if index == 0 else meeting.hold(ends_early=False)
        except (StopRequested, DarkroomError, OSError, ValueError) as error:
            ended[index] = error
            if isinstance(error, StopRequested):
                meeting.stop_others(error)
            elif index == 0:
                meeting.hold(ends_early=False)
        meeting.release() if index == 0 else meeting.serve()

    threads = [threading.Thread(target=process, args=(index,), daemon=True) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    return ended


def shares_then_trains(meeting: Meeting) -> tuple[list[Any], bool]:
    return meeting.share("task", 7), meeting.hold(ends_early=True)


def test_each_process_does_its_part() -> None:
    ended = met(shares_then_trains, lambda meeting, given: (meeting.rank.index, given))
    assert ended == [([(0, 7), (1, 7)], True), True]
    lonely = meeting_of_one(CommandDesk())
    lonely.offer("task", lambda given: given + 1)
    assert lonely.share("task", 7) == [8]


@pytest.mark.parametrize("index", [0, 1])
def test_a_part_that_fails_fails_the_main_process(index: int) -> None:
    def task(meeting: Meeting, given: int) -> int:
        if meeting.rank.index == index:
            raise DarkroomError("Too large.", advice="Use smaller ones.")
        return given

    failed, ends_early = met(shares_then_trains, task)
    assert (failed.message, failed.advice) == ("Too large.", "Use smaller ones.")
    assert ends_early is False


@pytest.mark.parametrize("index", [0, 1])
def test_a_full_disk_of_a_process_is_a_full_disk(index: int) -> None:
    def task(meeting: Meeting, given: int) -> None:
        if meeting.rank.index == index:
            raise OSError(errno.ENOSPC, "No space left on device", "a.safetensors")

    failed, _ = met(shares_then_trains, task)
    assert (failed.errno, failed.filename) == (errno.ENOSPC, "a.safetensors")


@pytest.mark.parametrize("index", [0, 1])
def test_a_stop_in_a_part_stops_all(index: int) -> None:
    def task(meeting: Meeting, given: int) -> None:
        meeting.check()

    main, other = met(shares_then_trains, task, stops=index)
    assert type(main) is StopRequested
    assert type(other) is StopAgreed


class Mortal(Thread):
    """One of two processes, the first of which can end."""

    words = ""

    def gather(self, value: Any) -> list[Any]:
        try:
            return super().gather(value)
        except threading.BrokenBarrierError:
            raise lost_process_error(self) from None

    def leave_message(self, message: str) -> None:
        Mortal.words = message

    def messages_of_others(self) -> str:
        return Mortal.words


@pytest.mark.parametrize("main_fails", [False, True])
def test_a_process_that_fails_between_steps_takes_part_in_the_last_backup(
    monkeypatch: pytest.MonkeyPatch, main_fails: bool
) -> None:
    monkeypatch.setattr(Mortal, "words", "")
    barrier, box = threading.Barrier(2), dict[int, Any]()
    meetings = [Meeting(Mortal(n, barrier, box), desk=CommandDesk()) for n in range(2)]
    for number, meeting in enumerate(meetings):
        meeting.offer("backup", functools.partial(lambda index, given: (index, given), number))
    other = threading.Thread(target=lambda: meetings[1].fail(DarkroomError("No memory.", advice="")), daemon=True)
    other.start()
    if not main_fails:  # otherwise both fail after the same step
        with pytest.raises(LostProcessError) as error:
            meetings[0].hold(ends_early=False)
        assert error.value.message == "No memory."
    found = meetings[0].share("backup", 7)
    barrier.abort()  # the main process ends
    other.join(120)
    assert not other.is_alive()
    assert found == [(0, 7), (1, 7)]
