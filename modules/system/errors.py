"""The one error a person is meant to read; everything else is a fault of the program."""

from __future__ import annotations


class DarkroomError(Exception):
    """Something the user can mend: a sentence that says what and where, and an advice that says what to do."""

    def __init__(self, message: str, *, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.message} {self.advice}".strip()
