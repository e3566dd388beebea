"""The error type for problems that the user can fix; every other exception is a bug in the program."""

from __future__ import annotations


class DarkroomError(Exception):
    """A problem that the user can fix: a message (what is wrong and where) and advice (what to do)."""

    def __init__(self, message: str, *, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.message} {self.advice}".strip()
