"""The local time, and the times of a run's steps, pauses and attempts, with the time left that follows from them.

The event of a step leaves out what lies between steps: validations, samples and backups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime


def in_local_zone(now: datetime) -> datetime:
    """Return a time with its zone: a time without one is local.

    UTC is used if the system cannot tell the local zone: a nonsensical TZ, or on Windows a clock before 1970.
    """
    try:
        return now.astimezone()
    except (ValueError, OverflowError, OSError):
        return now.replace(tzinfo=now.tzinfo or UTC)


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of the wall clock in seconds: of the first step and of the newest, and of pauses between them.

    `first_step` is the number of the first step of this attempt: the run may be resumed. `attempt_at` is when the
    attempt that is not over began, and `earlier_seconds` is how long all others took.
    """

    first_step: int = 0
    first_at: float | None = None
    newest_step: int = 0
    newest_at: float = 0.0
    paused_at: float | None = None
    paused_seconds: float = 0.0
    first_attempt_at: float | None = None
    attempt_at: float | None = None
    earlier_seconds: float = 0.0

    def machine_seconds(self, begun_at: float) -> float:
        """Return how long a machine has worked for a run that began at a time: the preparation and all attempts."""
        if self.first_attempt_at is None:
            return 0.0
        attempt = self.newest_at - self.attempt_at if self.attempt_at is not None else 0.0
        return max(0.0, self.first_attempt_at - begun_at) + self.earlier_seconds + max(0.0, attempt)

    def after_start(self, at_seconds: float) -> Timing:
        """Return the timing after the start of an attempt."""
        ended = self.after_end(self.newest_at)  # of an attempt that could not log its end
        return Timing(
            first_attempt_at=at_seconds if self.first_attempt_at is None else self.first_attempt_at,
            attempt_at=at_seconds,
            earlier_seconds=ended.earlier_seconds,
        )

    def after_end(self, at_seconds: float) -> Timing:
        """Return the timing after the end of an attempt."""
        seconds = max(0.0, at_seconds - self.attempt_at) if self.attempt_at is not None else 0.0
        return replace(self, attempt_at=None, earlier_seconds=self.earlier_seconds + seconds)

    def after_step(self, step: int, at_seconds: float) -> Timing:
        """Return the timing after a step."""
        if self.first_at is None:
            return replace(self, first_step=step, first_at=at_seconds, newest_step=step, newest_at=at_seconds)
        return replace(self, newest_step=step, newest_at=at_seconds)

    def after_phase(self, phase: str, at_seconds: float) -> Timing:
        """Return the timing after a change of the phase: a pause does not count."""
        if phase == "paused":
            return self if self.paused_at is not None else replace(self, paused_at=at_seconds)
        if self.paused_at is None:
            return self
        seconds = at_seconds - self.paused_at if self.first_at is not None else 0.0
        return replace(self, paused_at=None, paused_seconds=self.paused_seconds + seconds)

    def seconds_left(self, total_steps: int) -> float | None:
        """Return the seconds until the last step, with the validations, samples and backups that are to come.

        None before the second step.
        """
        num_steps = self.newest_step - self.first_step
        if self.first_at is None or num_steps < 1:
            return None
        seconds = max(0.0, self.newest_at - self.first_at - self.paused_seconds)
        return seconds / num_steps * max(0, total_steps - self.newest_step)
