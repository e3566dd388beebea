"""One line for a long job: what is being done, its progress, and a button to stop or start it."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from ui.widgets.controls import Button
from ui.widgets.panel import Panel, WrappedText
from ui.widgets.progress import ThinBar
from ui.widgets.theme import GAP, Theme


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
