"""The error type for problems that the user can fix; every other exception is a bug in the program."""

from __future__ import annotations


class DarkroomError(Exception):
    """A problem that the user can fix: a message (what is wrong and where) and advice (what to do).

    `remedy` is the name of what fixes it (`modules/system/remedies.py`), if something does.
    """

    def __init__(self, message: str, *, advice: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.advice}".strip()
