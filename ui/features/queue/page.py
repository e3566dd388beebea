"""The Queue page: the configs that are trained one after another."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from modules.config.codec import LoadedConfig
from modules.config.imports.any_file import load_any
from modules.config.presets import Preset
from trainer.run_queue.items import Item
from ui.features.queue.model import QueueControl
from ui.features.queue.rows import (
    Difference,
    Differences,
    describe_length,
    describe_training,
    detail_lines,
    names_of,
    status_line,
)
from ui.forms.context import Context
from ui.forms.documents import LOADED_KINDS
from ui.forms.model import Source
from ui.forms.page import PageFrame
from ui.forms.setting_pages import PageSpec
from ui.loop.background import Job
from ui.loop.wording import STATUS_COLOURS
from ui.widgets.card import Card
from ui.widgets.controls import Button, Switch
from ui.widgets.menu import make_menu, open_at
from ui.widgets.notices import Notice, Reply
from ui.widgets.panel import Flow, Panel, WrappedText
from ui.widgets.scroll import ScrollFrame
from ui.widgets.table import Column, Table
from ui.widgets.theme import GAP, PAD
from ui.widgets.variables import FlagVar

_COLUMNS = (
    Column("#0", "", 44),
    Column("name", "Name", 130, is_fitted=True),
    Column("differs", "Difference", 260, is_stretched=True, is_fitted=True, least_px=220),
    Column("state", "State", 94),
    Column("message", "Result", 150, is_fitted=True),
    Column("length", "Length", 140, is_optional=True),
    Column("what", "Training", 230, is_optional=True, is_fitted=True),
)
_NOTHING = (
    "Add configs, and they are trained one after another, each in a process of its own.\n"
    "A config is copied when it is added: later edits do not change it."
)
_REMOVED = "removed items"
_SELECT = "Select an item to see what it trains."
_WIDE, _DETAILS_WIDTH = 1150, 340


class QueuePage:
    """A table of the items with buttons; the queue itself is its model."""

    def __init__(self, master: tk.Misc, context: Context, spec: PageSpec) -> None:
        self.frame = PageFrame(master, context, spec)
        self.buttons: dict[str, Button] = {}
        self._context = context
        self._queue = context.models.of(QueueControl)
        self._items: tuple[Item, ...] = ()
        self._differences = Differences()
        self._comparison: Job | None = None
        self._facts_of: tuple[Item | None, str] = (None, "")
        px = context.theme.px
        body = Panel(self.frame, context.theme)
        body.grid(row=1, column=0, sticky="nsew", padx=px(PAD + 4), pady=(0, px(PAD)))
        body.rowconfigure(0, weight=1)
        body.columnconfigure(0, weight=1)
        body.bind("<Configure>", lambda _e: context.pump.redraw_soon((self, "width"), self._arrange), add="+")
        card = Card(body, context.theme)
        tk.Grid.grid_configure(card, row=0, column=0, sticky="nsew")
        self.details = Card(body, context.theme, "Details")
        scroll = ScrollFrame(self.details.body, context.theme, "card")
        scroll.pack(fill="both", expand=True, padx=(px(12), 0))
        self.facts = WrappedText(scroll.body, context.theme, colour="label", on="card")
        self.facts.pack(fill="x")
        self._add_toolbar(card.body)
        self.table = Table(card.body, context.theme, _COLUMNS, empty_text=_NOTHING)
        self._add_footer(card.body)
        self.table.pack(fill="both", expand=True, padx=(px(12), 0))
        self.table.on_events(
            {
                "<<TreeviewSelect>>": self._enable,
                "<Return>": self.edit,
                "<Double-Button-1>": self.edit,
                "<Delete>": self.remove,
                "<Alt-Up>": lambda: self.move(-1),
                "<Alt-Down>": lambda: self.move(1),
            }
        )
        self._add_run_buttons()
        self._queue.changed.subscribe(self._soon)
        context.session.changed.subscribe(self._soon)
        self._follow()

    def on_show(self) -> None:
        """Read the file again: the command line may have changed it."""
        self._queue.refresh()

    # -- actions

    def add_current(self) -> None:
        """Add a copy of the config in the form."""
        self._context.actions.run("add_to_queue")

    def add_file(self) -> None:
        """Add the config of a file that the user chooses."""
        context = self._context
        path = context.interaction.ask_file("Add a config to the queue", context.preferences.last_folder, LOADED_KINDS)
        if path is not None:
            self._add_path(path)

    def edit(self) -> None:
        """Load the config of the selected item into the form; a notice saves it to the queue or discards it."""
        item = self._single_item()
        if item is None or not item.is_waiting:
            return
        self._context.form.load(item.config, Source(item.name))
        self._queue.edit(item.number)
        self._context.navigation.open("training")

    def remove(self) -> None:
        """Remove the selected items; a notice brings them back."""
        places = [(self._items.index(item), item) for item in self.selected_items if not item.is_running]
        if not places:
            return
        queue = self._queue
        numbers = [item.number for _, item in places]

        def bring_back() -> None:
            for place, item in places:
                queue.change(lambda now, place=place, item=item: now.put_back(item, place))  # type: ignore[misc]

        names = ", ".join(item.name for _, item in places)
        text = f"Removed {names} from the queue."
        notice = Notice(_REMOVED, text, (Reply("Undo", bring_back),), until_start=True)
        # Only once they are: one that has begun meanwhile cannot be removed.
        queue.change(lambda now: now.remove(numbers), done=lambda: self._context.notices.show(notice))

    def move(self, by: int) -> None:
        """Move the selected item up or down."""
        item = self._single_item()
        if item is not None:
            self._queue.change(lambda now: now.move_by(item.number, by))

    def repeat(self) -> None:
        """Let the selected items that have ended wait again."""
        numbers = [item.number for item in self.selected_items if item.has_ended]
        self._queue.change(lambda now: now.repeat(numbers))

    def skip(self) -> None:
        """Stop the selected run, or the one of this computer."""
        self._queue.skip(self._item_to_skip())

    def show_run(self) -> None:
        """Show the run of the selected item on the Run history page."""
        item = self._single_item()
        if item is not None and item.run_dir:
            self._context.links.show_run(Path(item.run_dir))

    @property
    def selected_items(self) -> list[Item]:
        """The selected items."""
        return [self._items[n] for n in self.table.selected if n < len(self._items)]

    # -- building

    def _add_toolbar(self, body: Panel) -> None:
        context, px = self._context, self._context.theme.px
        self._toolbar = bar = Flow(body, context.theme, gap_px=GAP)
        bar.pack(fill="x", padx=(px(12), 0), pady=(0, px(8)))
        for name, label, press, tip in (
            ("add", "Add this config", self.add_current, "Add a copy of the config in the window"),
            ("file", "Add file…", self.add_file, "Add a config file"),
            ("preset", "Add preset ▾", self._open_presets, "Add a preset"),
            ("edit", "Edit", self.edit, "Load its config into the window (Return); only of an item that waits"),
            ("up", "↑", lambda: self.move(-1), "Move up (Alt+Up)"),
            ("down", "↓", lambda: self.move(1), "Move down (Alt+Down)"),
            ("repeat", "Again", self.repeat, "Train it once more"),
            ("on", "On ▾", lambda: open_at(self.machines_menu(), self.buttons["on"]), "Let another machine train it"),
            ("show", "Show run", self.show_run, "Show its run in the run history"),
            ("remove", "Remove", self.remove, "Remove from the queue (Delete)"),
        ):
            self.buttons[name] = context.buttons.add(bar, label, press, tip, on="card")

    def _add_footer(self, body: Panel) -> None:
        context, px = self._context, self._context.theme.px
        bar = Panel(body, context.theme, "card")
        bar.pack(side="bottom", fill="x", padx=(px(12), 0), pady=(px(8), 0))
        self.continues = FlagVar(master=bar, value=True)
        switch = Switch(
            bar,
            context.theme,
            self.continues,
            on="card",
            text="Continue after a failed run",
            command=lambda: self._queue.choose_after_failure("continue" if self.continues.get() else "stop"),
        )
        switch.pack(side="right")
        texts = Panel(bar, context.theme, "card")
        texts.pack(side="left", fill="x", expand=True)
        self.message = WrappedText(texts, context.theme, colour="muted", on="card")
        self.message.pack(fill="x")
        self.status = WrappedText(texts, context.theme, colour="label", on="card")
        self.status.pack(fill="x")

    def _add_run_buttons(self) -> None:
        queue = self._queue
        for name, label, press, tip in (
            ("run", "Run queue", queue.run, "Train the configs one after another"),
            ("last", "Stop after this run", queue.stop_after_current, "Let the current run end, then stop"),
            ("skip", "Skip this run", self.skip, "Stop the selected run, or the current one; then the next one begins"),
        ):
            self.buttons[name] = self._context.buttons.add(self.frame.buttons, label, press, tip)
            self.buttons[name].pack(padx=(GAP, 0))

    def _open_presets(self) -> None:
        open_at(self.preset_menu(self._context.documents.presets()), self.buttons["preset"])

    def preset_menu(self, presets: Sequence[Preset]) -> tk.Menu:
        """Return the menu of presets; choosing one adds it."""
        menu = make_menu(self.frame, self._context.theme)
        self._context.links.add_presets(menu, presets, lambda preset: self._add_path(preset.path))
        return menu

    def machines_menu(self) -> tk.Menu:
        """Return the menu of the machines; choosing one lets it train the selected items that wait."""
        menu, numbers = make_menu(self.frame, self._context.theme), [item.number for item in self.selected_items]
        for name, label in self._context.links.places().items():
            menu.add_command(label=label, command=partial(self._assign, numbers, name))
        menu.add_separator()
        menu.add_command(label="Machines…", command=partial(self._context.actions.run, "machines"))
        return menu

    def _assign(self, numbers: Sequence[int], machine: str) -> None:
        self._queue.change(lambda now: now.assign(numbers, machine))

    def _add_path(self, path: Path) -> None:
        """Read a config in the background, and add it: those of other programs are read with their images' folders."""

        def add(loaded: LoadedConfig) -> None:
            fatal = [p for p in loaded.problems if p.severity == "error" and not p.path]
            if fatal:
                self._context.findings.show(f"{path.name} was not added", fatal, self._context.form.config)
            else:
                self._queue.add(path.stem.lstrip("#"), loaded.config)

        self._context.pump.lasting.run(partial(load_any, path), add)

    def _arrange(self) -> None:
        """Show the selected item's training next to the list if there is room."""
        px, body = self._context.theme.px, self.details.master
        is_wide = body.winfo_width() >= px(_WIDE)
        body.columnconfigure(1, minsize=px(_DETAILS_WIDTH) if is_wide else 0)
        if is_wide:
            tk.Grid.grid_configure(self.details, row=0, column=1, sticky="nsew", padx=(px(PAD), 0))
        else:
            self.details.grid_remove()
        self._soon()  # the line below the list depends on it

    # -- following

    def _soon(self) -> None:
        if self.frame.is_shown:
            self._context.pump.redraw_soon(self, self._follow, at_most_every_seconds=0.25)

    def _follow(self) -> None:
        control = self._queue
        selection = {item.number for item in self.selected_items}
        self._items = control.queue.items
        known = self._differences.known_differences(self._items)
        if None in known and self._comparison is None:
            compare = partial(self._differences.compare, self._items)
            self._comparison = self._context.pump.lasting.run(compare, self._keep_differences)
        rows = zip(names_of(self._items), self._items, known, strict=True)
        self.table.set_rows([self._row(place, *row) for place, row in enumerate(rows)])
        rows_to_select = [n for n, item in enumerate(self._items) if item.number in selection]
        if rows_to_select != self.table.selected:
            self.table.select(rows_to_select)
        self.continues.set(control.queue.after_failure == "continue")
        self.status.set_text(status_line(control))
        self.status.recolour("error" if control.problem else "label")
        self._enable()

    def _keep_differences(self, _done: None) -> None:
        self._comparison = None
        self._soon()

    def _row(self, place: int, name: str, item: Item, difference: Difference | None) -> tuple[str, Sequence[str], str]:
        control, message = self._queue, item.message
        if control.current is not None and control.current.number == item.number:
            step = self._context.session.state.step
            message = f"step {step.step:,} of {step.total_steps:,}" if step else "starting"
        cells = (
            f"{name} (on {item.machine})" if item.machine else name,
            difference.cell if difference is not None else "…",
            item.state.label,
            message,
            describe_length(item),
            describe_training(item),
        )
        return f" {place + 1}", cells, STATUS_COLOURS.get(item.state, "muted" if item.has_ended else "")

    def _enable(self) -> None:
        control, items = self._queue, self.selected_items
        one = items[0] if len(items) == 1 else None
        message, difference, facts = self._details(one) if one else ("", Difference(), _SELECT)
        is_wide = bool(self.details.winfo_manager())
        self.message.set_text("\n".join(filter(None, (message, "" if is_wide else difference.sentence))))
        self.facts.set_text("\n".join([*difference.lines, "", facts] if difference.lines else [facts]))
        ended = [item for item in items if item.has_ended]
        enabled = {
            "edit": one is not None and one.is_waiting,
            "up": one is not None,
            "down": one is not None,
            "repeat": bool(ended),
            "show": one is not None and bool(one.run_dir),
            "remove": any(not item.is_running for item in items),
            "on": any(item.is_waiting for item in items),
            "run": control.can_run,
            "last": control.is_running,
            "skip": control.can_skip(self._item_to_skip()),
        }
        for name, is_enabled in enabled.items():
            self.buttons[name].set_enabled(is_enabled)
        has_machines = len(self._context.links.places()) > 1
        self._toolbar.show(self.buttons["on"], is_shown=has_machines, at=list(self.buttons).index("on"))
        self.buttons["run"].restyle("primary" if enabled["run"] else "plain")
        label = "Do not stop after this" if control.is_last and control.is_running else "Stop after this run"
        if self.buttons["last"].cget("text") != label:
            self.buttons["last"].configure(text=label)

    def _details(self, item: Item) -> tuple[str, Difference, str]:
        """Return how an item ended, how it differs from the one before it, and its facts.

        They are kept: configs take long to read.
        """
        if self._facts_of[0] is not item:
            self._facts_of = (item, "\n".join(detail_lines(item)))
        difference = self._differences.known_differences(self._items)[self._items.index(item)]
        return item.message, difference or Difference(), self._facts_of[1]

    def _item_to_skip(self) -> Item | None:
        item = self._single_item()
        return item if item is not None and item.is_running else self._queue.queue.on("").running

    def _single_item(self) -> Item | None:
        return self.selected_items[0] if len(self.selected_items) == 1 else None
