"""The job of the Tools page: its progress with Stop, and what it wrote."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from pathlib import Path

from ui.forms.context import Context
from ui.loop.jobs import JobRunner, JobState
from ui.widgets.controls import Button
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.progress import ThinBar
from ui.widgets.theme import GAP

_COLOURS = {"idle": "muted", "finished": "good", "failed": "error", "stopped": "muted"}
_NOTHING_YET = "What a tool writes, and how exact it is, is shown here."


class JobPanel(Panel):
    """Call `draw` with a state."""

    def __init__(self, master: tk.Misc, context: Context, runner: JobRunner, inspect: Callable[[Path], None]) -> None:
        super().__init__(master, context.theme, "card")
        self._context = context
        self._inspect = inspect
        self._paths: tuple[Path, ...] = ()
        px = context.theme.px
        head = Panel(self, context.theme, "card")
        head.pack(fill="x")
        self.title = Text(head, context.theme, role="strong", on="card")
        self.title.pack(side="left")
        self.stop = Button(head, context.theme, "Stop", runner.stop, on="card", style="danger")
        self.bar = ThinBar(self, context.theme, on="card")
        self.bar.pack(fill="x", pady=px(GAP))
        self.status = WrappedText(self, context.theme, on="card")
        self.status.pack(fill="x")
        self.notes = WrappedText(self, context.theme, on="card", colour="muted", role="small")
        self.notes.pack(fill="x", pady=(px(4), 0))
        self.buttons = Panel(self, context.theme, "card")
        self.open_folder = Button(self.buttons, context.theme, "Show in folder", self._open_folder, on="card")
        self.inspect = Button(self.buttons, context.theme, "Inspect the result", self._inspect_result, on="card")
        self.open_folder.pack(side="left", padx=(0, GAP))
        self.inspect.pack(side="left")

    def draw(self, state: JobState) -> None:
        """Show a state of a job."""
        self._paths = state.paths
        self.title.set_text(state.title)
        self.status.set_text(state.status or _NOTHING_YET)
        self.status.recolour(_COLOURS.get(state.stage, "text"))
        lines = [*(str(path) for path in state.paths), *state.notes]
        if state.failure is not None and state.failure.advice:
            lines.append(state.failure.advice)
        self.notes.set_text("\n".join(lines))
        self.stop.set_enabled(state.stage == "running")
        if state.is_active:
            self.bar.set(state.share)
            self.bar.pack(fill="x", pady=self.theme.px(GAP), before=self.status)
            self.stop.pack(side="right")
        else:
            self.bar.pack_forget()
            self.stop.pack_forget()
        if state.stage == "finished":
            self.buttons.pack(anchor="w", pady=(self.theme.px(10), self.theme.px(4)))
        else:
            self.buttons.pack_forget()

    def _open_folder(self) -> None:
        self._context.interaction.open_path(self._paths[0].parent)

    def _inspect_result(self) -> None:
        self._inspect(self._paths[0])
