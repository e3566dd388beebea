"""The page Train a LoRA: what a LoRA needs, with the fields and the list of other pages."""

from __future__ import annotations

import tkinter as tk

from modules.config.schema import Config
from modules.system.problem import count
from ui.features.lists.page import PROMPTS
from ui.forms.changes import changes
from ui.forms.context import Context
from ui.forms.form_with_list import FormWithList
from ui.forms.setting_pages import SIMPLE_FIELDS, PageSpec
from ui.widgets.card import Card
from ui.widgets.controls import Button
from ui.widgets.panel import Panel, WrappedText
from ui.widgets.theme import GAP

_SHOWN = (*SIMPLE_FIELDS, "concepts", "sampling.prompts", "model.family", "general.notes")


def simple_page(master: tk.Misc, context: Context, spec: PageSpec) -> FormWithList:
    """Return the page: the images, the form, and the table of prompts."""
    return FormWithList(master, context, spec, PROMPTS, lead=ImagesCard)


def hidden_changes(config: Config, baseline: Config) -> int:
    """Return how many changed settings the page does not show."""
    paths = (change.path for change in changes(config, baseline))
    return sum(not any(path == shown or path.startswith(f"{shown}.") for shown in _SHOWN) for path in paths)


class ImagesCard(Card):
    """The folders of images, and how many settings of the config are not shown on the page."""

    def __init__(self, master: tk.Misc, context: Context) -> None:
        super().__init__(master, context.theme, "Images")
        self._context = context
        px = context.theme.px
        self.text = WrappedText(self.body, context.theme, colour="label", on="card")
        self.text.pack(fill="x", padx=(px(12), 0))
        row = Panel(self.body, context.theme, "card")
        row.pack(fill="x", padx=(px(12), 0), pady=(px(8), 0))
        Button(row, context.theme, "Images and captions…", self._open_concepts, on="card").pack(side="left")
        self.show_button = Button(row, context.theme, "Show all settings", self._show_all, on="card")
        self.show_button.pack(side="left", padx=(GAP, 0))
        self.hidden = WrappedText(self.body, context.theme, colour="muted", on="card")
        self.hidden.pack(fill="x", padx=(px(12), 0), pady=(px(8), 0))
        context.form.changed.subscribe(lambda: context.pump.redraw_soon(self, self.refresh))
        self.refresh()

    def refresh(self) -> None:
        """Name the folders, and count the settings that only the full view shows."""
        form = self._context.form
        names = [c.label for c in form.config.concepts if c.enabled]
        self.text.set_text(", ".join(names) if names else "None yet: add ten to fifty good images.")
        baseline = form.baseline if form.source.kind in ("built_in", "preset") else Config()
        parts = []
        if form.config.training.trains != "adapter":
            parts.append("This config does not train a LoRA: the training target in the top bar is another one.")
        if number := hidden_changes(form.config, baseline):
            what = "edited since the preset was loaded" if baseline is form.baseline else "not at the default"
            is_or_are = "is" if number == 1 else "are"
            parts.append(f"{count(number, 'setting')} of this config {is_or_are} {what}, and not shown here.")
        self.hidden.set_text(" ".join(parts))

    def _open_concepts(self) -> None:
        self._context.navigation.open("concepts")

    def _show_all(self) -> None:
        self._context.preferences.change(is_simple=False)
        self._context.navigation.open("training")
