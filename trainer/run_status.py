"""The status of a run or of an item of the queue: one word for each, in the window and on the command line."""

from __future__ import annotations

from enum import StrEnum

CRASH_MESSAGE = "The run ended unexpectedly: its process failed or was stopped by the system, or the computer stopped."
"""The message of a crashed run, whoever finds it."""


class RunStatus(StrEnum):
    """How far a run has come, or how it ended. The value is the name in files.

    A run that is elsewhere is on another machine, and no process here follows it: it may train or have ended there.
    A run has failed if it reported why, and crashed if its process ended without a report: it was killed, or the
    computer stopped. An interrupted item is resumed as soon as the queue runs again, however its run ended.
    """

    WAITING = "waiting"
    INTERRUPTED = "interrupted"
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED_EARLY = "stopped_early"
    STOPPED = "stopped"
    FAILED = "failed"
    CRASHED = "crashed"
    ELSEWHERE = "elsewhere"

    @property
    def label(self) -> str:
        """The word that people read."""
        return self.value.replace("_", " ").capitalize()

    @property
    def is_complete(self) -> bool:
        """Whether the run ended by itself and wrote its result."""
        return self in (RunStatus.FINISHED, RunStatus.STOPPED_EARLY)

    @property
    def can_be_resumed(self) -> bool:
        """Whether the run ended before it was complete, so that it continues from a backup, if it has one."""
        return self is RunStatus.STOPPED or self.is_failure

    @property
    def is_failure(self) -> bool:
        """Whether the run ended unintentionally."""
        return self in (RunStatus.FAILED, RunStatus.CRASHED)
