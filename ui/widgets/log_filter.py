"""Which lines of a run's log are shown, and the log as text to copy. No Tk."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ui.loop.wording import LogLine

LEVELS: Mapping[str, str] = {"all": "All lines", "warning": "Warnings, errors", "error": "Errors"}
_TONES: Mapping[str, frozenset[str]] = {
    "all": frozenset({"plain", "good", "warning", "error"}),
    "warning": frozenset({"warning", "error"}),
    "error": frozenset({"error"}),
}


@dataclass(frozen=True, slots=True)
class LogFilter:
    """A level, and words that a line must contain, in any order and with any capitals."""

    text: str = ""
    level: str = "all"

    def matching(self, lines: Sequence[LogLine]) -> tuple[LogLine, ...]:
        """Return the lines that are shown, in order."""
        tones, words = _TONES[self.level], self.text.lower().split()
        if self == LogFilter():
            return tuple(lines)
        return tuple(x for x in lines if x.tone in tones and all(word in x.text.lower() for word in words))


def clock(at_seconds: float) -> str:
    """Return a time as it stands before a line."""
    return time.strftime("%H:%M:%S", time.localtime(at_seconds))


def as_text(lines: Sequence[LogLine]) -> str:
    """Return lines as text, each with its time."""
    return "\n".join(f"{clock(line.at_seconds)}\t{line.text}" for line in lines)
