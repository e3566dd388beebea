"""An `Interaction` with scripted answers that records its calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from modules.system.problem import Problem
from trainer.preflight import Preview
from ui.loop.interaction import Answer, Failure, FileKind, Severity, StartAnswer


class Recorder:
    """Put answers into `answers` by method; a method without an answer returns "cancelled"."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def asked(self, verb: str) -> list[tuple[Any, ...]]:
        """Return the arguments of all calls of a method."""
        return [arguments for name, arguments in self.calls if name == verb]

    def _answer(self, verb: str, default: Any, *arguments: Any) -> Any:
        self.calls.append((verb, arguments))
        return self.answers.get(verb, default)

    def ask_folder(self, title: str, start: Path) -> Path | None:
        return self._answer("ask_folder", None, title, start)

    def ask_folders(self, title: str, start: Path) -> tuple[Path, ...]:
        return self._answer("ask_folders", (), title, start)

    def ask_file(self, title: str, start: Path, kinds: Sequence[FileKind]) -> Path | None:
        return self._answer("ask_file", None, title, start, kinds)

    def ask_save_file(self, title: str, start: Path, kinds: Sequence[FileKind]) -> Path | None:
        return self._answer("ask_save_file", None, title, start, kinds)

    def ask_text(self, title: str, message: str, text: str) -> str | None:
        return self._answer("ask_text", None, title, message, text)

    def choose(self, title: str, message: str, answers: Sequence[Answer], severity: Severity = "plain") -> str | None:
        return self._answer("choose", None, title, message, [a.name for a in answers])

    def confirm_start(
        self, warnings: Sequence[Problem], preview: Preview | None, *, resumes: bool = False
    ) -> StartAnswer:
        return self._answer("confirm_start", False, list(warnings), preview)

    def show_failure(self, failure: Failure) -> bool:
        return self._answer("show_failure", False, failure)

    def open_path(self, path: Path) -> None:
        self._answer("open_path", None, path)
