"""The window "How long to train": a choice for each kind of subject, with its reason."""

from __future__ import annotations

import tkinter as tk
from functools import partial
from typing import Literal

from modules.config.schema import Config
from modules.data.subjects import Amount, LengthChoice, length_choices
from modules.system.problem import count
from ui.forms.context import Context
from ui.forms.model import FormModel
from ui.loop.background import Background, Job, Report
from ui.loop.signal import Signal
from ui.widgets.controls import Button
from ui.widgets.dialog import Window
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.theme import PAD

Stage = Literal["counting", "ready", "failed"]


def _find_amount(config: Config, report: Report) -> Amount | None:
    from trainer.preflight.subject_length import find_amount

    return find_amount(config, partial(report, "scanning"))


class LengthModel:
    """The choices for the concepts of the form as they were at first; `changed` is emitted when they are known."""

    def __init__(self, form: FormModel, background: Background) -> None:
        self.stage: Stage = "counting"
        self.choices: tuple[LengthChoice, ...] = ()
        self.changed: Signal[[]] = Signal()
        self._form = form
        self._amount: Amount | None = None
        config = form.config
        self._job: Job = background.run_reporting(partial(_find_amount, config), self._keep)

    @property
    def message(self) -> str:
        """The sentence about the images that are known, and the present length."""
        if self.stage == "counting":
            return "Counting the images…"
        if self._amount is None or not self.choices:
            return "There are no images to train on yet. Add their folder on the Concepts page."
        epochs = self._form.config.training.epochs
        now = f"{count(epochs, 'epoch')}, {count(self._amount.steps(epochs), 'step')}"
        views = self._amount.samples_per_epoch * epochs / self._amount.num_images
        return (
            f"What do your {count(self._amount.num_images, 'image')} show? Now: {now}, each is seen {views:,.0f} times."
        )

    def apply(self, choice: LengthChoice) -> str:
        """Set the length as one edit, and return a sentence about it."""
        from trainer.preflight.subject_length import with_epochs

        self._form.replace(with_epochs(self._form.config, choice.epochs))
        return f"{choice.subject.label}: {choice.length}. Ctrl+Z undoes it."

    def close(self) -> None:
        """Drop what is still being counted."""
        self._job.cancel()

    def _keep(self, amount: Amount | None) -> None:
        self._amount = amount
        self.choices = length_choices(amount) if amount is not None else ()
        self.stage = "ready" if self.choices else "failed"
        self.changed()


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
        self.appear(620, 380)

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
