"""The window "How long to train": a choice for each kind of subject, with its reason."""

from __future__ import annotations

import tkinter as tk
from functools import partial

from modules.data.subjects import LengthChoice
from ui.features.length.model import LengthModel
from ui.forms.context import Context
from ui.widgets.controls import Button
from ui.widgets.dialog import Window
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.theme import PAD

_SIZE = (620, 380)
_NOTE = (
    "Usual numbers, from what users and other trainers report; there is no rule. There will be as many samples and "
    "validations as now. Watch the samples, and stop when they are good."
)


class LengthWindow(Window):
    """A click sets the epochs and closes; closing changes nothing."""

    is_single = True

    def __init__(self, context: Context) -> None:
        super().__init__(context.root, context.theme, "How long to train")
        self.length = LengthModel(context.form, context.pump.background)
        self.buttons: dict[str, Button] = {}
        self._context = context
        pad, px = context.theme.px(PAD), context.theme.px
        self.summary = WrappedText(self, context.theme)
        self.summary.pack(fill="x", padx=pad, pady=(pad, px(12)))
        self.add_footer("Cancel")
        WrappedText(self, context.theme, _NOTE, role="small", colour="muted").pack(side="bottom", fill="x", padx=pad)
        self._rows = Panel(self, context.theme)
        self._rows.pack(fill="both", expand=True, padx=pad)
        self._rows.columnconfigure(1, weight=1)
        self.at_close(self.length.close, self.length.changed.subscribe(self._show))
        self._show()
        self.appear(*_SIZE)

    def choose(self, choice: LengthChoice) -> None:
        """Set a length and close."""
        self._context.notify(self.length.apply(choice))
        self.close()

    def _show(self) -> None:
        px = self.theme.px
        self.summary.set_text(self.length.message)
        for row, choice in enumerate(self.length.choices):
            label = choice.subject.label
            button = Button(self._rows, self.theme, label, partial(self.choose, choice), width=110)
            tk.Grid.grid_configure(button, row=2 * row, column=0, rowspan=2, sticky="nw", pady=(0, px(12)))
            Text(self._rows, self.theme, choice.length, role="strong").grid(
                row=2 * row, column=1, sticky="w", padx=px(12)
            )
            reason = WrappedText(self._rows, self.theme, choice.subject.reason, role="small", colour="muted")
            reason.grid(row=2 * row + 1, column=1, sticky="new", padx=px(12), pady=(0, px(12)))
            self.buttons[choice.subject.name] = button
