"""The `Interaction` as Tk dialogs."""

from __future__ import annotations

import os
import subprocess
import sys
import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from modules.system.problem import Problem
from modules.system.remedies import REMEDIES
from ui.loop.interaction import (
    ACTIONS_OF_REMEDIES,
    BEFORE_RESUMING,
    BEFORE_START,
    Answer,
    Failure,
    FileKind,
    Severity,
    StartAnswer,
)
from ui.loop.pump import Pump
from ui.loop.wording import preview_lines, start_figures
from ui.widgets.dialog import Dialog
from ui.widgets.entry import Entry
from ui.widgets.key_figures import KeyFigures
from ui.widgets.panel import Panel, Text
from ui.widgets.theme import Theme
from ui.widgets.variables import TextVar

if TYPE_CHECKING:
    from trainer.preflight import Preview
    from ui.widgets.files.browser import Purpose

_MAX_WARNINGS = 8
_OPENING_SECONDS = 10  # within which a program that cannot open a path ends
_MAX_OFFERS = 3


class FolderMemory(Protocol):
    """The memory of the file dialogs; the window's preferences."""

    @property
    def recent_folders(self) -> Sequence[str]:
        """The folders in which a dialog was answered, the newest first."""

    @property
    def shows_hidden_files(self) -> bool:
        """Whether hidden files are listed."""

    def show_hidden_files(self, shows: bool) -> None:
        """List hidden files, or not."""

    def note_folder(self, folder: Path) -> None:
        """Remember a folder."""


@dataclass(frozen=True, slots=True)
class FileServices:
    """The services of the window that the dialogs need; `places` returns the labelled folders of the program."""

    pump: Pump
    memory: FolderMemory
    places: Callable[[], Sequence[tuple[str, Path]]]


class TkInteraction:
    """Asks questions and shows messages in dialogs."""

    def __init__(self, root: tk.Tk, theme: Theme) -> None:
        self._root = root
        self._theme = theme
        self._files: FileServices | None = None

    def serve_files(self, services: FileServices) -> None:
        """Pass what the file dialogs need; call it once, before any of them opens."""
        self._files = services

    def ask_folder(self, title: str, start: Path) -> Path | None:
        """Ask for one folder."""
        return self._first_path("folder", title, start)

    def ask_folders(self, title: str, start: Path) -> tuple[Path, ...]:
        """Ask for any number of folders."""
        return self._paths("folders", title, start)

    def ask_file(self, title: str, start: Path, kinds: Sequence[FileKind]) -> Path | None:
        """Ask for a file that exists."""
        return self._first_path("open", title, start, kinds)

    def ask_save_file(self, title: str, start: Path, kinds: Sequence[FileKind]) -> Path | None:
        """Ask where to save; `start` is the proposed file. The dialog asks before a file is replaced."""
        return self._first_path("save", title, start, kinds)

    def _first_path(self, purpose: Purpose, title: str, start: Path, kinds: Sequence[FileKind] = ()) -> Path | None:
        return next(iter(self._paths(purpose, title, start, kinds)), None)

    def _paths(self, purpose: Purpose, title: str, start: Path, kinds: Sequence[FileKind] = ()) -> tuple[Path, ...]:
        from ui.widgets.files.dialog import FileDialog  # a fifth of the window's own modules

        assert self._files is not None, "call serve_files first"
        return FileDialog(self._root, self._theme, self._files, purpose, title, start, kinds).ask_paths()

    def ask_text(self, title: str, message: str, text: str) -> str | None:
        """Ask for a line of text."""
        answers = (Answer("cancel", "Cancel"), Answer("ok", "OK", is_default=True))
        dialog = Dialog(self._root, self._theme, title, message, answers)
        variable = TextVar(master=dialog, value=text)
        entry = Entry(dialog.content, self._theme, variable, on="window", width=320)
        entry.pack(fill="x", pady=(10, 0))
        entry.tk_entry.select_range(0, "end")
        dialog.first_entry = entry.tk_entry
        return variable.get() if dialog.ask() == "ok" else None

    def choose(self, title: str, message: str, answers: Sequence[Answer], severity: Severity = "plain") -> str | None:
        """Ask a question with the given answers; return the name of the one chosen."""
        return Dialog(self._root, self._theme, title, message, answers, severity=severity).ask()

    def confirm_start(
        self, warnings: Sequence[Problem], preview: Preview | None, *, resumes: bool = False
    ) -> StartAnswer:
        """Show the warnings of the check and the preview of the run; return whether to start, or an offer to take."""
        named = {problem.remedy for problem in warnings}
        offers = [Answer(action, REMEDIES[r].label) for r, action in ACTIONS_OF_REMEDIES.items() if r in named]
        offers = offers[:_MAX_OFFERS]  # the list of findings, which Back shows, has all of them
        title, label = (BEFORE_RESUMING, "Resume") if resumes else (BEFORE_START, "Start")
        answers = (*offers, Answer("back", "Back"), Answer("start", label, is_default=True))
        dialog = Dialog(self._root, self._theme, title, "", answers, severity="warning")
        theme, px = self._theme, self._theme.px
        if preview is not None:
            figures = KeyFigures(dialog.content, theme, on="window")
            figures.show(start_figures(preview))
            figures.pack(fill="x", pady=(px(10), px(6)))
        for problem in warnings[:_MAX_WARNINGS]:
            text = f"{problem.message} {problem.advice}".strip()
            Text(dialog.content, theme, f"▲  {text}", wrap_px=460).pack(anchor="w", pady=(px(8), 0))
        if len(warnings) > _MAX_WARNINGS:
            rest = f"and {len(warnings) - _MAX_WARNINGS} more"
            Text(dialog.content, theme, rest, colour="muted").pack(anchor="w", pady=(px(8), 0))
        if preview is not None:
            lines = "\n".join(preview_lines(preview))
            Text(dialog.content, theme, lines, colour="muted", wrap_px=460).pack(anchor="w", pady=(px(14), 0))
        answer = dialog.ask()
        return answer if answer is not None and answer in {offer.name for offer in offers} else answer == "start"

    def show_failure(self, failure: Failure) -> bool:
        """Show an error: message and advice; details on request. Return whether its offer was accepted."""
        answers = [Answer("close", "Close", is_default=not failure.offer)]
        if failure.offer:
            answers.append(Answer("offer", failure.offer, is_default=True))
        if failure.details:
            answers.insert(0, Answer("copy", "Copy details"))
        if failure.details_file is not None:
            answers.insert(0, Answer("open", "Open details"))
        while True:
            dialog = Dialog(self._root, self._theme, failure.title, failure.message, answers, severity="error")
            if failure.advice:
                Text(dialog.content, self._theme, failure.advice, colour="muted", wrap_px=460).pack(anchor="w", pady=8)
            match dialog.ask():
                case "copy":
                    self._root.clipboard_clear()
                    self._root.clipboard_append(failure.details)
                case "open" if failure.details_file is not None:
                    self.open_path(failure.details_file)
                case answer:
                    return answer == "offer"

    def open_path(self, path: Path) -> None:
        """Open a file or folder in the system's program for it; show its path if the system has none."""
        try:
            if sys.platform == "win32":
                os.startfile(path)
                return
            opener = "open" if sys.platform == "darwin" else "xdg-open"
            process = subprocess.Popen([opener, str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        except OSError:
            self._show_path(path)
            return
        if self._files is not None:
            self._files.pump.lasting.run(
                partial(process.wait, timeout=_OPENING_SECONDS),
                lambda code: self._show_path(path) if code else None,
                lambda _error: None,  # it shows the path for as long as it runs
            )

    def _show_path(self, path: Path) -> None:
        """Show a path to copy, if the system has no program to open it."""
        dialog = Dialog(self._root, self._theme, "Location", "", (Answer("ok", "Close", is_default=True),))
        box = Panel(dialog.content, self._theme)
        box.pack(fill="x", pady=(10, 0))
        variable = TextVar(master=dialog, value=str(path))
        Entry(box, self._theme, variable, on="window", width=420).pack(fill="x")
        dialog.ask()
