"""The Sampling page: when it is measured and painted, and the list of what is painted."""

from __future__ import annotations

import tkinter as tk

from modules.config.sections.watching import SamplePrompt
from ui.context import Context
from ui.editors.item import ItemEditor
from ui.forms.layout import FormView
from ui.forms.records import groups_of
from ui.pages.catalogue import PageSpec
from ui.pages.list_card import ENABLED_COLUMN, OFF, ON, ListCard
from ui.pages.page import PageFrame
from ui.theme import PAD
from ui.widgets.table import Column

PATH = "sampling.prompts"
_COLUMNS = (
    Column("#0", "Prompt", 340, is_stretched=True),
    Column(ENABLED_COLUMN, "On", 44, "center"),
    Column("size", "Size", 90),
    Column("seed", "Seed", 80),
    Column("steps", "Steps", 60),
    Column("guidance", "Guidance", 76),
)


class SamplingPage:
    """A form of the sections, and the table of prompts below it."""

    def __init__(self, master: tk.Misc, context: Context, spec: PageSpec) -> None:
        self.frame = PageFrame(master, context, spec)
        self.scroll = self.frame.add_scroll(context)
        self.editor: ItemEditor | None = None
        self._context = context
        form = context.form
        self.form_view = FormView(self.scroll.body, context, lambda: groups_of(form.config, spec.sections))
        self.form_view.grid(row=0, column=0, sticky="new")
        self.form_view.build()
        self.list = ListCard(
            self.scroll.body,
            context,
            PATH,
            _COLUMNS,
            title="Sample prompts",
            row_of=self._row_of,
            edit=self.edit,
            before_change=self._close_editor,
        )
        tk.Grid.grid_configure(self.list.card, row=1, column=0, sticky="nsew", pady=(0, context.theme.px(PAD)))
        self.list.add_button("add", "Add sample", self.add, "Add a picture to paint")
        self.list.add_usual_buttons()
        self.list.refresh()

    def shown(self) -> None:
        """A form follows the config whether it is seen or not."""

    def hidden(self) -> None:
        """A form follows the config whether it is seen or not."""

    def show_field(self, path: str) -> bool:
        """Lead the user to a field of the form, to the list, or into the editor of a prompt."""
        if not path.startswith(PATH):
            row = self.form_view.reveal(path)
            if row is not None:
                self.scroll.see(row.control.frame)
            return row is not None
        self.scroll.see(self.list.card)
        return self.list.show_field(path, lambda index: self.edit(index).show_field(path))

    def add(self) -> None:
        """Add a prompt like the last one, or one of the size that is trained, and open its editor."""
        present = self.list.items
        if present:
            new = present[-1].model_copy(update={"prompt": ""})
        else:
            side_px = self._context.form.config.data.resolution_px[0] // 8 * 8
            new = SamplePrompt(width_px=side_px, height_px=side_px)
        self.edit(self.list.add([new])[0])

    def edit(self, index: int) -> ItemEditor:
        """Open the editor of a prompt."""
        self._close_editor()
        self.editor = ItemEditor(self._context, f"{PATH}.{index}", "Sample", SamplePrompt)
        return self.editor

    def _close_editor(self) -> None:
        if self.editor is not None and self.editor.winfo_exists():
            self.editor.close()
        self.editor = None

    def _row_of(self, _index: int, sample: SamplePrompt) -> tuple[str, tuple[str, ...], str]:
        text = " ".join(sample.prompt.split()) or "(no prompt)"
        size = f"{sample.width_px} × {sample.height_px}"
        values = (ON if sample.enabled else OFF, size, str(sample.seed), str(sample.steps), f"{sample.guidance:g}")
        return f" {text}", values, "" if sample.enabled else "faint"
