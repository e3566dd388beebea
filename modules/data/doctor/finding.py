"""A finding of the doctor: one value for the table, the page, JSON and the window."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.system.problem import Severity

if TYPE_CHECKING:
    from modules.data.doctor.examined import Examined

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is probably wrong with some files.

    `check` is the name of the check that found it, `figure` what it measured, in `unit`. `files` may contain folders
    and paths into archives.
    """

    check: str
    files: tuple[Path, ...]
    reason: str
    figure: float
    unit: str
    fix: str
    severity: Severity = "warning"

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON-safe data."""
        return {
            "check": self.check,
            "severity": self.severity,
            "files": [str(f) for f in self.files],
            "reason": self.reason,
            "figure": round(self.figure, 4),
            "unit": self.unit,
            "fix": self.fix,
        }


@dataclass(frozen=True, slots=True)
class CheckSpec:
    """The record of a check: its name, its label, what it looks for, and the function that finds it.

    `compares_concepts`: what it finds depends on the other concepts of the run.
    """

    name: str
    label: str
    help: str
    find: Callable[[Examined], Iterable[Finding]]
    compares_concepts: bool = False


def short_name(path: Path) -> str:
    """Return the name of a file with its folder's, as it may be shown: concepts often have files of the same name."""
    return printable(f"{path.parent.name}/{path.name}")


def printable(text: object) -> str:
    """Return a text as it may be shown: control characters, line breaks and undecodable bytes as escapes.

    File names may contain any of them, also sequences that change the colours of a terminal or the writing direction.
    """
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text))
    return "".join(escaped)
