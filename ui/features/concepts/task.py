"""A long job of an editor: its progress, its result, or why it failed, and the line that shows them."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ui.loop.background import Background, Job, Report, cancel
from ui.loop.signal import Signal
from ui.widgets.controls import Button
from ui.widgets.panel import Panel, WrappedText
from ui.widgets.progress import ThinBar
from ui.widgets.theme import GAP, Theme

T = TypeVar("T")


class Task(Generic[T]):
    """Runs one job at a time; starting another one cancels it."""

    def __init__(self, background: Background) -> None:
        self.changed: Signal[[]] = Signal()
        self.result: T | None = None
        self.failure: Exception | None = None
        self.status = ""  # what is being done
        self.share = 0.0
        self._background = background
        self._job: Job | None = None

    @property
    def is_running(self) -> bool:
        """Whether a job is under way."""
        return self._job is not None

    def start(self, work: Callable[[Report], T]) -> None:
        """Start a job; the last result stays until it is done."""
        self._cancel()
        self.failure, self.status, self.share = None, "", 0.0
        self._job = self._background.run_reporting(
            work, self._keep_result, self._show_failure, progress=self._show_progress
        )
        self.changed()

    def stop(self) -> None:
        """Cancel the job."""
        self._cancel()
        self.changed()

    def _cancel(self) -> None:
        cancel(self._job)
        self._job = None

    def _show_progress(self, what: str, done: int, total: int) -> None:
        self.status = f"{what[:1].upper()}{what[1:]}: {done:,} of {total:,}" if total else what
        self.share = done / total if total else 0.0
        self.changed()

    def _keep_result(self, result: T) -> None:
        self.result, self._job = result, None
        self.changed()

    def _show_failure(self, error: Exception) -> None:
        self.failure, self.result, self._job = error, None, None
        self.changed()


class TaskBar(Panel):
    """Call `show_running` and `show_idle`; the button starts the job, or stops it while it runs."""

    def __init__(
        self, master: tk.Misc, theme: Theme, *, start: Callable[[], object], stop: Callable[[], object], label: str
    ) -> None:
        super().__init__(master, theme)
        self._start, self._stop, self._label = start, stop, label
        self._is_running = False
        self.button = Button(self, theme, label, self._pressed)
        self.button.pack(side="right")
        self.bar = ThinBar(self, theme, on="window", width_px=140)
        self.text = WrappedText(self, theme, colour="muted")
        self.text.pack(side="left", fill="x", expand=True)

    def follow(self, task: Task[Any], summary: str) -> None:
        """Show the progress of a task, why it failed, or what it found."""
        if task.is_running:
            self.show_running(task.status, task.share)
        elif task.failure is not None:
            self.show_idle(str(task.failure), is_error=True)
        elif summary:
            self.show_idle(summary)

    def show_unscanned(self, problem: str | None) -> None:
        """Show that the folder is being scanned, or why it cannot be."""
        self.show_idle("Scanning…" if problem is None else f"The folder: {problem}.", is_error=problem is not None)

    def show_running(self, words: str, share: float) -> None:
        """Show the progress of the job."""
        self._is_running = True
        self.text.recolour("muted")
        self.text.set_text(words or "Waiting…")
        self.bar.set(share)
        self.bar.pack(side="right", padx=GAP)
        self.button.configure(text="Stop")

    def show_idle(self, words: str, *, is_error: bool = False) -> None:
        """Show the result of the job in words."""
        self._is_running = False
        self.text.recolour("error" if is_error else "muted")
        self.text.set_text(words)
        self.bar.pack_forget()
        self.button.configure(text=self._label)

    def _pressed(self) -> None:
        (self._stop if self._is_running else self._start)()
