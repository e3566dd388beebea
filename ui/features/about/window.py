"""About Darkroom, and all keys."""

from __future__ import annotations

from functools import partial

from modules.system.paths import PROGRAM_ROOT
from ui.features.about.model import DOCUMENTS, about_lines, key_rows
from ui.forms.context import Context
from ui.widgets.controls import Button
from ui.widgets.dialog import Window
from ui.widgets.fitted_text import FittedText
from ui.widgets.panel import Panel, Text
from ui.widgets.table import Column, Table
from ui.widgets.theme import GAP, PAD

_WRAP_PX = 430
_KEYS_SIZE = (960, 600)
_COLUMNS = (Column("#0", "Where", 110), Column("key", "Key", 210), Column("what", "What it does", 590))


class About(Window):
    """Version, licence, environment and the documents by name."""

    def __init__(self, context: Context) -> None:
        super().__init__(context.root, context.theme, "About Darkroom")
        self._context = context
        theme, px = context.theme, context.theme.px
        Text(self, theme, "Darkroom", role="title").pack(anchor="w", padx=px(PAD), pady=(px(PAD), 0))
        Text(self, theme, "Trains Stable Diffusion on your own machine.", colour="muted").pack(anchor="w", padx=px(PAD))
        table = Panel(self, theme)
        table.pack(fill="x", padx=px(PAD), pady=px(12))
        self.lines = about_lines()
        table.columnconfigure(1, minsize=px(_WRAP_PX))
        for row, fact in enumerate(self.lines):
            Text(table, theme, fact.label, colour="muted").grid(
                row=row, column=0, sticky="nw", padx=(0, px(PAD)), pady=px(2)
            )
            if fact.is_path:
                text: Text = self._path(table, fact.value)
            else:
                text = Text(table, theme, fact.value, wrap_px=_WRAP_PX)
            text.grid(row=row, column=1, sticky="ew", pady=px(2))
        documents = Panel(self, theme)
        documents.pack(fill="x", padx=px(PAD))
        for label, name in DOCUMENTS:
            if (PROGRAM_ROOT / name).exists():
                open_it = partial(context.interaction.open_path, PROGRAM_ROOT / name)
                Button(documents, theme, label, open_it, width=64).pack(side="left", padx=(0, GAP))
        footer = Panel(self, theme)
        footer.pack(side="bottom", fill="x", padx=px(PAD), pady=px(PAD))
        close = Button(footer, theme, "Close", self.close, style="primary", width=92)
        close.pack(side="right")
        Button(footer, theme, "Copy", self.copy, width=92).pack(side="right", padx=(0, GAP))
        self.appear()
        self.resizable(False, False)
        self.focus_set()

    def _path(self, table: Panel, path: str) -> FittedText:
        """Return a path in a line, with the end in sight; the tooltip has all of it."""
        text = FittedText(table, self.theme, path, keeps_end=True)
        self._context.tips.attach(text, lambda: text.hidden_text)
        return text

    def copy(self) -> None:
        """Copy the facts as text."""
        self.clipboard_clear()
        self.clipboard_append("\n".join(f"{fact.label}: {fact.value}" for fact in self.lines))
        self._context.notify("Copied.")


class Keys(Window):
    """Every key of the window, from the table of actions."""

    def __init__(self, context: Context) -> None:
        super().__init__(context.root, context.theme, "Keys")
        theme, px = context.theme, context.theme.px
        self.rows = key_rows(context.actions)
        Text(self, theme, "Keys", role="heading").pack(anchor="w", padx=px(PAD), pady=(px(PAD), px(8)))
        footer = Panel(self, theme)
        footer.pack(side="bottom", fill="x", padx=px(PAD), pady=px(PAD))
        Button(footer, theme, "Close", self.close, style="primary", width=92).pack(side="right")
        self.table = Table(self, theme, _COLUMNS)
        self.table.tree.column("what", stretch=True)
        self.table.pack(fill="both", expand=True, padx=px(PAD))
        headings = [
            r.heading if i == 0 or self.rows[i - 1].heading != r.heading else "" for i, r in enumerate(self.rows)
        ]
        self.table.set_rows([(f" {h}", (r.key, r.what), "") for h, r in zip(headings, self.rows, strict=True)])
        self.appear(*_KEYS_SIZE)
        self.table.tree.focus_set()
