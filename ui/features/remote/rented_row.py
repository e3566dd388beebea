"""The row of a rented machine: its state at its provider, and the buttons that start, stop and delete it."""

from __future__ import annotations

import tkinter as tk
from functools import partial
from typing import TYPE_CHECKING

from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason
from ui.features.remote.renting import Renting, state_of
from ui.forms.context import Context
from ui.loop.background import Job
from ui.loop.interaction import Answer
from ui.widgets.controls import Button
from ui.widgets.panel import Panel, WrappedText
from ui.widgets.theme import GAP

if TYPE_CHECKING:
    from trainer.remote.record import Remote


class RentedRow(Panel):
    """Shows a rented machine, and starts, stops or deletes it once the user agrees to it. It is in a grid."""

    def __init__(self, master: tk.Misc, context: Context) -> None:
        super().__init__(master, context.theme)
        self.renting = context.models.of(Renting)
        self.buttons: dict[str, Button] = {}
        self._context = context
        self.remote: Remote | None = None
        self._job: Job | None = None
        for name, label, press in (
            ("start", "Start it…", self._start),
            ("stop", "Stop it…", partial(self._end, deletes=False)),
            ("delete", "Delete it…", partial(self._end, deletes=True)),
            ("cancel", "Cancel", self.renting.cancel),
        ):
            self.buttons[name] = Button(self, context.theme, label, press)
        self.state = WrappedText(self, context.theme, colour="muted")
        self.state.pack(side="left", fill="x", expand=True)

    def show(self, remote: Remote | None) -> None:
        """Show a rented machine; None for any other, for which there is a row only while something is done with one."""
        is_new, self.remote = remote != self.remote or not self.renting.is_working, remote
        if remote is None and not self.renting.is_working:
            self.grid_remove()
            return
        self.grid()
        self._show_buttons()
        if remote is None:
            self.state.set_text("")
        elif is_new:
            self._look(remote)

    def destroy(self) -> None:
        """Also drop the state that is asked for; what is being done with a machine continues."""
        if self._job is not None:
            self._job.cancel()
        super().destroy()

    def _look(self, remote: Remote) -> None:
        """Read the machine's state at its provider."""
        if self._job is not None:
            self._job.cancel()
        self.state.set_text("Rented: asking for its state…")

        def failed(error: Exception) -> None:
            self.state.set_text(f"Rented. {error if isinstance(error, DarkroomError) else plain_reason(error)}")

        work = self._context.pump.background.run
        self._job = work(partial(state_of, remote), lambda text: self.state.set_text(f"Rented: {text}."), failed)

    def _show_buttons(self) -> None:
        is_working = self.renting.is_working
        for name, button in self.buttons.items():
            button.pack_forget()
            if (name == "cancel") == is_working:
                button.pack(side="left", padx=(0, GAP), before=self.state)
        self.buttons["cancel"].set_enabled(self.renting.can_cancel)

    def _start(self) -> None:
        assert self.remote is not None
        price = self.remote.price_per_hour
        message = f"It costs {price:g} an hour from now on, until it is stopped or deleted."
        if self._agrees(f"Start {self.remote.name}?", message, "Start it"):
            self.renting.start(self.remote)

    def _end(self, *, deletes: bool) -> None:
        assert self.remote is not None
        name = self.remote.name
        message = "A run that trains there ends, as if it was killed. "
        message += (
            "All that is on the machine is lost: backups, and results that were not fetched."
            if deletes
            else "Its backups and all else in its folder stay on the volume, which still costs something."
        )
        if self._agrees(f"{'Delete' if deletes else 'Stop'} {name}?", message, "Delete it" if deletes else "Stop it"):
            self.renting.end(self.remote, deletes=deletes)

    def _agrees(self, title: str, message: str, label: str) -> bool:
        answers = (Answer("cancel", "Cancel", is_default=True), Answer("do", label))
        return self._context.interaction.choose(title, message, answers, "warning") == "do"
