"""The window that frees space: what can be deleted, with its size, and a question before it is."""

from __future__ import annotations

from functools import partial

from modules.system.problem import format_size
from ui.features.space.model import Deletable, Space, delete, describe_deletion, find_space
from ui.forms.context import Context
from ui.loop.interaction import Answer, failure_of
from ui.widgets.controls import Button
from ui.widgets.dialog import Window
from ui.widgets.panel import Panel, WrappedText
from ui.widgets.table import Column, Table
from ui.widgets.theme import GAP, PAD

_SIZE = (820, 460)
_COLUMNS = (
    Column("#0", "What", 330, is_stretched=True),
    Column("size", "Size", 90, anchor="e"),
    Column("then", "When it is deleted", 350, is_fitted=True),
)


class SpaceWindow(Window):
    """Lists what can be deleted; nothing goes without a question."""

    is_single = True

    def __init__(self, context: Context) -> None:
        super().__init__(context.root, context.theme, "Free space")
        self._context = context
        self.items: tuple[Deletable, ...] = ()
        pad = context.theme.px(PAD)
        self.status = WrappedText(self, context.theme, "Reading the sizes of folders…", colour="label")
        self.status.pack(fill="x", padx=pad, pady=(pad, context.theme.px(GAP)))
        footer = Panel(self, context.theme)
        footer.pack(side="bottom", fill="x", padx=pad, pady=pad)
        self.delete_button = Button(footer, context.theme, "Delete…", self.ask, width=110)
        self.delete_button.pack(side="right")
        Button(footer, context.theme, "Close", self.close, width=92).pack(side="right", padx=(0, GAP))
        self.table = Table(self, context.theme, _COLUMNS)
        self.table.pack(fill="both", expand=True, padx=pad)
        self.table.on_events({"<<TreeviewSelect>>": self._follow_selection, "<Delete>": self.ask})
        self._follow_selection()
        self.look()
        self.appear(*_SIZE)

    def look(self) -> None:
        """Read what can be deleted, in the background."""
        config, places = self._context.form.config, self._context.workspaces()
        self._context.pump.background.run(partial(find_space, config, places), self._show)

    def ask(self) -> None:
        """Ask, then delete what is selected."""
        items = [self.items[n] for n in self.table.selected]
        if not items:
            return
        size = format_size(sum(item.size_bytes for item in items))
        answers = (Answer("cancel", "Cancel", is_default=True), Answer("delete", "Delete"))
        message = describe_deletion(items)
        if self._context.interaction.choose(f"Delete {size}?", message, answers, "warning") == "delete":
            work = partial(delete, items, self._context.workspaces())
            self._context.pump.background.run(work, self._report, self._fail)

    def _show(self, space: Space) -> None:
        if not self.winfo_exists():
            return
        self.items = space.items
        nothing = "" if space.items else " Darkroom has nothing that can be deleted."
        self.status.set_text(f"{space.free}{nothing}")
        self.table.set_rows([(i.name, (format_size(i.size_bytes), i.then), "") for i in space.items])
        self._follow_selection()

    def _report(self, size_bytes: int) -> None:
        self._context.notify(f"Deleted {format_size(size_bytes)}.")
        self._context.starter.look_for_backup()
        if self.winfo_exists():
            self.look()

    def _fail(self, error: Exception) -> None:
        self._context.interaction.show_failure(
            failure_of("Not everything was deleted", error, "Check its permissions.")
        )
        if self.winfo_exists():
            self.look()

    def _follow_selection(self) -> None:
        self.delete_button.set_enabled(bool(self.table.selected))
