"""The questions and messages of the window. Injected: the program passes Tk dialogs, tests a recorder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from modules.system.errors import DarkroomError
from modules.system.problem import Problem

if TYPE_CHECKING:  # the window needs these when a run is checked
    from trainer.preflight import Preview

FileKind = tuple[str, str]  # its name and a pattern: ("Config", "*.json")
Severity = Literal["plain", "warning", "error"]
StartAnswer = bool | str  # whether to start; or the action of an offer to take first
ACTIONS_OF_REMEDIES: Mapping[str, str] = {
    "memory": "fit",
    "base_model": "base_model",
    "repository": "use_replacement",
    "family": "train_as_found",
    "variant": "use_variant",
    "attention": "use_attention",
    "device": "use_auto_device",
    "length": "length",
    "method": "which_method",
    "preset": "find_preset",
    "captions": "auto_captions",
    "queue": "add_to_queue",
    "space": "space",
    "packages": "install_packages",
    "tokens": "tokens",
}
"""The window's action for each remedy (`modules/system/remedies.py`) that has a button among the findings."""


BEFORE_START, BEFORE_RESUMING, REPLACE_FILE = "Before you start", "Before you resume", "Replace the file?"  # titles


class Answer(NamedTuple):
    """A button of a question: its name, its label, and whether Return presses it."""

    name: str
    label: str
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """An error message: a plain sentence, advice, and technical details on request.

    `offer` is the label of a button that leads to a fix, `remedy` the name of the fix (`modules/system/remedies.py`).
    """

    title: str
    message: str
    advice: str = ""
    details: str = ""
    details_file: Path | None = None
    offer: str = ""
    remedy: str = ""


def failure_of(title: str, error: Exception, advice: str = "") -> Failure:
    """Return an error as a message; `advice` is for errors that have none."""
    if isinstance(error, DarkroomError):
        return Failure(title, error.message, error.advice)
    return Failure(title, str(error), advice)


class Interaction(Protocol):
    """Questions to the user, or to a test. None or an empty tuple means "cancelled"."""

    def ask_folder(self, title: str, start: Path) -> Path | None:
        """Ask for one folder."""

    def ask_folders(self, title: str, start: Path) -> tuple[Path, ...]:
        """Ask for any number of folders."""

    def ask_file(self, title: str, start: Path, kinds: Sequence[FileKind]) -> Path | None:
        """Ask for a file that exists."""

    def ask_save_file(self, title: str, start: Path, kinds: Sequence[FileKind]) -> Path | None:
        """Ask where to save; `start` is the proposed file."""

    def ask_text(self, title: str, message: str, text: str) -> str | None:
        """Ask for a line of text."""

    def choose(self, title: str, message: str, answers: Sequence[Answer], severity: Severity = "plain") -> str | None:
        """Ask a question with the given answers; return the name of the one chosen."""

    def confirm_start(
        self, warnings: Sequence[Problem], preview: Preview | None, *, resumes: bool = False
    ) -> StartAnswer:
        """Show the warnings of the check and the preview of the run; return whether to start.

        The remedies of the warnings are also offered (`ACTIONS_OF_REMEDIES`): the chosen one's action is returned.
        """

    def show_failure(self, failure: Failure) -> bool:
        """Show an error; return whether the user accepted its offer."""

    def open_path(self, path: Path) -> None:
        """Open a file or folder in the system's program for it."""
