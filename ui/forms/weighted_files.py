"""A list of adapter files, each with a strength: add, remove, change."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from modules.system.paths import from_root
from ui.forms.context import Context
from ui.widgets.controls import Button
from ui.widgets.entry import Entry
from ui.widgets.panel import Panel, Text
from ui.widgets.theme import GAP
from ui.widgets.variables import TextVar

_KINDS = (("LoRA", "*.safetensors *.pt *.bin"), ("All files", "*"))


class WeightedFiles(Panel):
    """The files in their order, with the strengths as typed. `changed` is called after each change by the user."""

    def __init__(
        self,
        master: tk.Misc,
        context: Context,
        *,
        changed: Callable[[], object],
        empty: str = "",
        title: str = "LoRA",
        has_strength: bool = True,
    ) -> None:
        super().__init__(master, context.theme, "card")
        self.rows: list[tuple[Path, TextVar]] = []
        self._context = context
        self._changed = changed
        self._title = title
        self._body = Panel(self, context.theme, "card")
        self._body.pack(fill="x")
        self._body.columnconfigure(0, weight=1)
        self._empty = empty
        self.has_strength = has_strength
        self.add_button = Button(self, context.theme, f"Add {_article(title)} {title}…", self._browse, on="card")
        self.add_button.pack(anchor="w", pady=(context.theme.px(2), 0))
        self._draw()

    @property
    def files(self) -> list[tuple[str, str]]:
        """The files, each with its strength as typed."""
        return [(str(path), variable.get()) for path, variable in self.rows]

    def set(self, files: Iterable[tuple[str, str]]) -> None:
        """Show other files with their strengths."""
        self.rows = [(Path(path), self._variable(strength)) for path, strength in files]
        self._draw()

    def add(self, paths: Sequence[Path]) -> None:
        """Add files with a strength of 1."""
        self.rows += [(path, self._variable("1")) for path in paths]
        self._draw()
        self._changed()

    def remove(self, index: int) -> None:
        """Remove a file."""
        del self.rows[index]
        self._draw()
        self._changed()

    def _variable(self, strength: str) -> TextVar:
        variable = TextVar(master=self, value=strength)
        variable.trace_add("write", lambda *_names: self._changed())
        return variable

    @property
    def _start_folder(self) -> Path:
        """The folder of the file that was added last; without one, that of the results."""
        added = from_root(str(self.rows[-1][0])).parent if self.rows else None
        return added if added is not None and added.is_dir() else self._context.documents.results_folder

    def _browse(self) -> None:
        title = f"Add {_article(self._title)} {self._title}"
        path = self._context.interaction.ask_file(title, self._start_folder, _KINDS)
        if path is not None:
            self._context.preferences.change(last_folder=str(path.parent))
            self.add([path])

    def _draw(self) -> None:
        theme, px = self._context.theme, self._context.theme.px
        for old in self._body.winfo_children():
            old.destroy()
        if not self.rows and self._empty:
            Text(self._body, theme, self._empty, on="card", colour="muted", role="small").grid(sticky="w", pady=px(4))
        for row, (path, variable) in enumerate(self.rows):
            name = Text(self._body, theme, path.name, on="card")
            name.grid(row=row, column=0, sticky="ew", pady=px(3))
            self._context.tips.attach(name, partial(str, path))
            if self.has_strength:
                entry = Entry(self._body, theme, variable, width=64)
                tk.Grid.grid_configure(entry, row=row, column=1, padx=px(GAP), pady=px(3))
                self._context.tips.attach(entry, lambda: "Strength: 1 is as trained, 0 switches it off")
            remove = Button(self._body, theme, "×", partial(self.remove, row), on="card", width=30)
            tk.Grid.grid_configure(remove, row=row, column=2, pady=px(3))
            self._context.tips.attach(remove, lambda: "Remove from the list; the file stays")
        if not self.rows and not self._empty:
            Panel(self._body, theme, "card", height=1).grid()


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"
