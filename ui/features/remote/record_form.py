"""The fields of a machine's record, as they are typed."""

from __future__ import annotations

import tkinter as tk
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from modules.system.errors import DarkroomError
from ui.forms.context import Context
from ui.widgets.controls import Button, Choice, Switch
from ui.widgets.entry import Entry
from ui.widgets.panel import Panel, Text
from ui.widgets.variables import FlagVar, TextVar

if TYPE_CHECKING:
    from trainer.remote.record import Remote

_FIELDS = (
    ("name", "Name", "box", "What it is called here"),
    ("host", "Host", "203.0.113.7", "Its name or address, or an alias of OpenSSH's config"),
    ("port", "Port", "22", "Of its SSH server; empty for OpenSSH's config"),
    ("user", "User", "as in OpenSSH's config", "Empty for OpenSSH's config"),
    ("key_file", "Key file", "the SSH agent, and the usual keys", "A private key; one with a passphrase: in the agent"),
    ("folder", "Folder there", "~/darkroom", "Where everything is kept on the machine"),
    ("python", "Python there", "an environment that Darkroom makes", "A Python that has all packages"),
    ("wheels_dir", "Wheels", "none: from its package index", "Without one: the folder here that “remote wheels” fills"),
    ("hub_cache_dir", "Model cache", "the user's own", "Where models of Hugging Face are kept on the machine"),
    ("num_devices", "Devices", "1", "How many GPUs a run uses"),
    ("price_per_hour", "Price per hour", "none", "Shown with each run: what it has cost, and what it will"),
    ("command_after", "Command after", "none", "Run there when the last run has finished, to end a rented machine"),
)  # fmt: skip
_BROWSED = ("key_file", "wheels_dir")
_BESIDE = {"port": "host", "price_per_hour": "num_devices"}  # in the row of another field


class RecordForm(Panel):
    """Rows of entries. Values that cannot be typed, such as the provider, are kept from the machine that is shown."""

    def __init__(self, master: tk.Misc, context: Context) -> None:
        super().__init__(master, context.theme)
        self.columnconfigure(1, weight=1)
        self.texts: dict[str, TextVar] = {}
        self._context = context
        self._shown: Remote | None = None
        self._entries: dict[str, Entry] = {}
        self._labels: dict[str, Text] = {}
        self._num_rows = 1
        for name, label, placeholder, tip in _FIELDS:
            self._add_field(name, label, placeholder, tip)
        self.fetches_backups = FlagVar(master=self, value=False)
        text = "Fetch each backup when it is written"
        switch = Switch(self, context.theme, self.fetches_backups, on="window", text=text)
        tk.Grid.grid_configure(switch, row=self._num_rows, column=1, sticky="w", pady=2)
        self.pod_after = TextVar(master=self)
        self._after = Choice(self._entries["command_after"].master, context.theme, self.pod_after, {}, on="window")

    @property
    def name(self) -> str:
        """The name that is typed."""
        return self.texts["name"].get().strip()

    def show(self, remote: Remote | None) -> None:
        """Show a record; None for an empty one. A rented machine has a choice instead of a command after its runs."""
        self._shown = remote
        for field, text in self.texts.items():
            value = getattr(remote, field) if remote is not None else ""
            text.set("" if value in (0, "") else f"{value:g}" if isinstance(value, float) else str(value))
        self.fetches_backups.set(remote is not None and remote.fetches_backups)
        is_rented = remote is not None and bool(remote.pod)
        self._labels["command_after"].set_text("After the last run" if is_rented else "Command after")
        shown, hidden = (self._after, self._entries["command_after"])[:: 1 if is_rented else -1]
        hidden.pack_forget()
        shown.pack(side="left", fill="x", expand=True)
        if remote is not None and is_rented:
            from trainer.remote.renting import AFTER_LABELS

            self._after.set_choices(AFTER_LABELS)
            self.pod_after.set(remote.pod_after)

    def typed(self) -> Remote:
        """Return the record that is typed. Raises DarkroomError for what is not a number."""
        from trainer.remote.record import DEFAULT_FOLDER, Remote

        texts = {name: text.get().strip() for name, text in self.texts.items()}
        try:
            numbers = int(texts["port"] or 0), int(texts["num_devices"] or 1), float(texts["price_per_hour"] or 0)
        except ValueError:
            raise DarkroomError("Port and devices are whole numbers, and the price is a number.") from None
        port, num_devices, price = numbers
        typed = Remote(
            texts["name"],
            texts["host"],
            port,
            texts["user"],
            texts["key_file"],
            texts["folder"] or DEFAULT_FOLDER,
            texts["python"],
            num_devices,
            price,
            self.fetches_backups.get(),
            texts["command_after"],
            wheels_dir=texts["wheels_dir"],
            hub_cache_dir=texts["hub_cache_dir"],
        )
        former = self._shown or typed
        after = self.pod_after.get() if former.pod else ""
        return replace(typed, provider=former.provider, pod=former.pod, pod_after=after)  # type: ignore[arg-type]

    def new_end(self) -> str:
        """Return how the machine is to end after its last run, if that is new, as a sentence; empty otherwise."""
        former, command = self._shown, self.texts["command_after"].get().strip()
        if former is not None and former.pod:
            is_new = self.pod_after.get() == "delete" != former.pod_after
            return f"{self.name} is deleted with all on it." if is_new else ""
        is_new = bool(command) and (former is None or former.command_after != command)
        return f"{self.name} runs this:\n\n{command}" if is_new else ""

    def add_row(self, row: int, label: str, control: tk.Widget) -> Text:
        """Add a row, and return its label."""
        text = Text(self, self.theme, label, colour="label")
        text.grid(row=row, column=0, sticky="w", padx=(0, self.theme.px(14)))
        tk.Grid.grid_configure(control, row=row, column=1, sticky="ew", pady=2)
        return text

    def browse(self, name: str) -> None:
        """Ask for the file or the folder of a field."""
        now = Path(self.texts[name].get().strip() or "~/.ssh").expanduser()
        start = next((place for place in (now, *now.parents) if place.is_dir()), Path.home())
        interaction = self._context.interaction
        is_file = name == "key_file"
        path = interaction.ask_file("Key file", start, ()) if is_file else interaction.ask_folder("Wheels", start)
        if path is not None:
            self.texts[name].set(str(path))

    def _add_field(self, name: str, label: str, placeholder: str, tip: str) -> None:
        variable = self.texts[name] = TextVar(master=self)
        is_beside = name in _BESIDE
        if is_beside:
            box: tk.Misc = self._entries[_BESIDE[name]].master
            Text(box, self.theme, label, colour="label").pack(side="left", padx=self.theme.px(14))
        else:
            row = Panel(self, self.theme)
            self._labels[name] = self.add_row(self._num_rows, label, row)
            self._num_rows, box = self._num_rows + 1, row
        entry = Entry(box, self.theme, variable, on="window", placeholder=placeholder, width=90 if is_beside else 120)
        entry.pack(side="left", fill="x", expand=not is_beside)
        self._context.tips.attach(entry, lambda: tip)
        self._entries[name] = entry
        if name in _BROWSED:
            Button(box, self.theme, "…", partial(self.browse, name), width=36).pack(side="left", padx=(6, 0))
