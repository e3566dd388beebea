"""The button below a job's failure that leads to what fixes it."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping
from functools import partial

from modules.system.remedies import REMEDIES
from ui.forms.context import Context
from ui.loop.interaction import ACTIONS_OF_REMEDIES, Failure
from ui.widgets.controls import Button
from ui.widgets.panel import Panel
from ui.widgets.theme import GAP

_OF_COMPUTER = ("space", "tokens")  # the other remedies change the config of training, which a job does not read


class RemedyRow(Panel):
    """Takes no room without a button. `own` are remedies in the settings of the job itself, by their names."""

    def __init__(
        self,
        master: tk.Misc,
        context: Context,
        own: Mapping[str, Callable[[], object]] | None = None,
        *,
        on: str = "card",
    ) -> None:
        super().__init__(master, context.theme, on, height=1)
        self._on = on
        run = context.actions.run
        self._actions = {name: partial(run, ACTIONS_OF_REMEDIES[name]) for name in _OF_COMPUTER} | dict(own or {})
        self.button: Button | None = None

    def show(self, failure: Failure | None) -> None:
        """Show the button for a failure, if there is one."""
        remedy = failure.remedy if failure is not None else ""
        if self.button is not None:
            self.button.destroy()
            self.button = None
            self.configure(height=1)
        if (action := self._actions.get(remedy)) is not None:
            self.button = Button(self, self.theme, REMEDIES[remedy].label, action, on=self._on)
            self.button.pack(anchor="w", pady=self.theme.px(GAP))
