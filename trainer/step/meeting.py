"""The processes of a run meet before each step. There they stop together, and share work that is not part of a step.

The main process decides what is due: it validates, samples, saves and writes backups. What can be shared is a task,
known to all of them by its name; when the main process calls it, each of them carries out its part.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from modules.system.errors import DarkroomError
from modules.system.ranks import Rank
from trainer.commands import CommandDesk, StopAgreed, StopRequested
from trainer.ranks import ALONE, LostProcessError, Ranks, lost_process_error
from trainer.step.failures import explain

Task = Callable[[Any], Any]
"""Gets a value from the main process, and returns this process's part of the result; both must be picklable."""


class _MeetingResult(NamedTuple):
    """The result of a meeting: the numbers of processes that stop, end early, call a task, or have failed."""

    stops: float
    ends: float
    calls: float
    fails: float


class Meeting:
    """Replaces the checks for a stop and for early stopping between steps, in a run of several processes.

    Commands reach the main process, except for a stop by a signal, which may reach any. The others wait here while the
    main process samples, validates, writes a backup or is paused, and take part when it calls a task.
    """

    def __init__(self, ranks: Ranks, *, desk: CommandDesk) -> None:
        self._ranks = ranks
        self._desk = desk
        self._tasks: dict[str, Task] = {}

    @property
    def rank(self) -> Rank:
        """This process."""
        return self._ranks.rank

    def offer(self, name: str, task: Task) -> None:
        """Make a task known under a name, in all processes."""
        self._tasks[name] = task

    def hold(self, *, ends_early: bool) -> bool:
        """Meet the others; return whether early stopping ends the run.

        Raises StopAgreed in all once one is to stop, LostProcessError if one has failed since the last step.
        `ends_early` is whether this process would end the run early; only the main process decides.
        """
        while True:
            is_stopping = False
            try:
                self._desk.check()
            except StopRequested:
                is_stopping = True
            ends = self.rank.is_main and ends_early
            result = self._meet(stops=is_stopping, ends=ends)
            if result.calls:
                self._take_part()
                continue
            if result.fails:
                raise lost_process_error(self._ranks)
            if result.stops:
                raise StopAgreed
            return result.ends > 0

    def share(self, name: str, given: Any = None) -> list[Any]:
        """Carry out a task in all processes and return their results in order; called by the main process alone.

        The others carry it out at their next meeting. Raises what its own part raises, StopRequested if another part
        was stopped, and DarkroomError with the message of another part that failed.
        """
        if self.rank.is_alone:
            return [self._tasks[name](given)]
        self._meet(calls=True)
        self._ranks.from_main((name, given))
        return self._carry_out(name, given)

    def check(self) -> None:
        """Raise StopRequested once the run is to stop; for the parts of a task."""
        if self.rank.is_main:
            self._desk.check()
        elif self._desk.is_stop_requested or self._ranks.is_stop_announced():
            raise StopRequested

    def stop_others(self, stop: StopRequested) -> None:
        """After a stop in work that only this process does: let the others stop at their next meeting."""
        if isinstance(stop, StopAgreed) or self.rank.is_alone:
            return
        while self._meet(stops=True).calls:  # the main process has called a task in the meantime
            self._take_part()

    def serve(self) -> None:
        """Take part in the tasks of the main process, until it calls `release`; does nothing in the main process."""
        while not self.rank.is_main and self._meet().calls:
            self._take_part()

    def fail(self, error: Exception) -> None:
        """After an error between two steps: let the main process know, and take part in its last backup.

        Does nothing in the main process, whose own error ends the run.
        """
        if self.rank.is_main:
            return
        if not isinstance(error, LostProcessError):
            self._ranks.leave_message(explain(error)[0])
        with suppress(LostProcessError):  # the end of the main process
            while self._meet(fails=True).calls:
                self._take_part()
            self.serve()

    def release(self) -> None:
        """End the others' `serve`; called by the main process."""
        if not self.rank.is_alone:
            self._meet()

    def _meet(
        self, *, stops: bool = False, ends: bool = False, calls: bool = False, fails: bool = False
    ) -> _MeetingResult:
        return _MeetingResult(*self._ranks.sums([stops, ends, calls, fails]))

    def _take_part(self) -> None:
        name, given = self._ranks.from_main(("", None))
        self._carry_out(name, given)

    def _carry_out(self, name: str, given: Any) -> list[Any]:
        """Carry out this process's part. All meet at its end, whatever becomes of their parts."""
        result, failure = None, None
        try:
            result = self._tasks[name](given)
        except Exception as error:  # noqa: BLE001 - raised below, by the main process
            failure = error
            if isinstance(error, StopRequested) and self.rank.is_main:
                self._ranks.announce_stop()
        results = self._ranks.gather((result, _FailureText.of(failure)))
        if not self.rank.is_main:
            return []
        if failure is not None:
            raise failure
        for _, words in results:
            if words is not None:
                words.throw()
        return [value for value, _ in results]


class _FailureText:
    """Why a process could not carry out its part of a task, in a form that travels."""

    def __init__(self, error: BaseException) -> None:
        self._is_stop = isinstance(error, StopRequested)
        text = error.message if isinstance(error, DarkroomError) else str(error)
        self._message = next(iter(text.strip().splitlines()), type(error).__name__)
        self._advice = error.advice if isinstance(error, DarkroomError) else ""
        self._system: tuple[int | str | None, ...] = ()
        if isinstance(error, OSError) and error.errno is not None:
            self._system = (error.errno, error.strerror, error.filename)

    @classmethod
    def of(cls, error: BaseException | None) -> _FailureText | None:
        """Return the text of an error; None without one."""
        return None if error is None else cls(error)

    def throw(self) -> None:
        """Raise StopRequested, OSError if it is one, such as a full disk, or DarkroomError with the message."""
        if self._is_stop:
            raise StopRequested
        if self._system:
            raise OSError(*self._system)
        raise DarkroomError(self._message, advice=self._advice)


def meeting_of_one(desk: CommandDesk) -> Meeting:
    """Return the meeting of a single process, which carries out each task by itself."""
    return Meeting(ALONE, desk=desk)
