"""The cards of the Generate page other than its forms: LoRAs, embeddings, runs, the number of images and the grid."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from modules.settings.field import records_of
from modules.system.paths import from_root
from trainer.jobs.sample import SampleChoices
from trainer.jobs.sample_grid import AXES, axis_labels
from trainer.jobs.sample_sources import RunModels
from ui.features.generate.model import SampleSession
from ui.forms.context import Context
from ui.forms.weighted_files import WeightedFiles
from ui.loop.past_runs import Result
from ui.widgets.card import Card
from ui.widgets.controls import Button, Choice
from ui.widgets.entry import Entry
from ui.widgets.menu import make_menu, open_at
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.theme import GAP
from ui.widgets.variables import TextVar

_HELP = {record.path: record.setting.help for record in records_of(SampleChoices)}


class ModelCard:
    """The LoRAs and the embeddings, and buttons to use the model of the config or of a run.

    `results` are the models of earlier runs, the newest first; the newest is offered unless it is in use.
    """

    def __init__(
        self,
        master: tk.Misc,
        context: Context,
        session: SampleSession,
        *,
        use_run: Callable[[Path], None],
        use_result: Callable[[Result], None],
        use_config: Callable[[], None],
        use_demo: Callable[[], None],
    ) -> None:
        theme, px = context.theme, context.theme.px
        self.card = Card(master, theme, "LoRAs and embeddings")
        self._context = context
        self._session = session
        self.results: tuple[Result, ...] = ()
        self._use_run, self._use_result = use_run, use_result
        body = Panel(self.card.body, theme, "card")
        body.pack(fill="x", padx=(px(12), 0))
        self._add_offer(body)
        self.loras = WeightedFiles(body, context, changed=self._follow_offer, empty="No LoRA")
        self.loras.set((a.path, f"{a.strength:g}") for a in session.choices.adapters)
        self.loras.pack(fill="x")
        self.embeddings = WeightedFiles(body, context, changed=lambda: None, title="embedding", has_strength=False)
        self.embeddings.set((path, "1") for path in session.choices.embeddings)
        self.embeddings.pack(fill="x", pady=(px(6), 0))
        row = Panel(body, theme, "card")
        row.pack(fill="x", pady=(px(10), 0))
        Button(row, theme, "Model of the config", use_config, on="card").pack(side="left", padx=(0, GAP))
        self.run_button = Button(row, theme, "From a run ▾", self._open_runs, on="card")
        self.run_button.pack(side="left", padx=(0, GAP))
        self.demo_button = Button(row, theme, "Demo model", use_demo, on="card")
        self.demo_button.pack(side="left")
        self.run_text = WrappedText(body, theme, on="card", colour="muted", role="small")
        self.run_text.pack(fill="x", pady=(px(6), 0))
        self.refresh()

    def show_results(self, results: tuple[Result, ...]) -> None:
        """Offer the results of runs."""
        self.results = results
        self._follow_offer()

    def run_menu(self) -> tk.Menu:
        """Return the menu of the results of runs."""
        menu = make_menu(self.card, self._context.theme)
        for result in self.results:
            menu.add_command(label=result.label, command=partial(self._use_result, result))
        if self.results:
            menu.add_separator()
        menu.add_command(label="The folder of a run, or a backup…", command=self._browse)
        return menu

    def refresh(self) -> None:
        """Show which run is chosen."""
        self._follow_offer()
        choices = self._session.choices
        if choices.backup:
            self.run_text.set_text(f"The weights of the backup {Path(choices.backup).name} of {Path(choices.run).name}")
        elif choices.run:
            self.run_text.set_text(f"The run {Path(choices.run).name}")
        else:
            self.run_text.set_text("")

    def show_run(self, models: RunModels) -> None:
        """Show a run with its saves."""
        self.refresh()
        labels = ", ".join(save.label for save in models.saves)
        name = self.run_text.cget("text")
        saves = f"Saves: {labels} (the axis Save compares them)." if labels else "It has no saves."
        backups = (
            f" {len(models.backups)} backups: choose the folder of one to sample from it." if models.backups else ""
        )
        self.run_text.set_text(f"{name}. {saves}{backups}")

    def _add_offer(self, body: Panel) -> None:
        theme, px = self._context.theme, self._context.theme.px
        self.offer = Panel(body, theme, "card")
        self.offer_text = WrappedText(self.offer, theme, on="card", colour="label")
        self.offer_text.pack(side="left", fill="x", expand=True)
        self.offer_button = Button(self.offer, theme, "Use it", self._take_offer, on="card")
        self.offer_button.pack(side="right", padx=(px(GAP), 0))

    def _take_offer(self) -> None:
        if self.results:
            self._use_result(self.results[0])

    def _follow_offer(self) -> None:
        """Offer the newest result, unless it is in use."""
        newest = self.results[0] if self.results else None
        if newest is None or self._uses(newest.path):
            self.offer.pack_forget()
        else:
            self.offer_text.set_text(f"Newest result: {newest.label}")
            self.offer.pack(fill="x", pady=(0, self._context.theme.px(8)), before=self.loras)

    def _uses(self, path: Path) -> bool:
        files = [file for file, _ in (*self.loras.rows, *self.embeddings.rows)]
        return path in files or str(path) == self._session.form.value("model.base_model")

    def _open_runs(self) -> None:
        open_at(self.run_menu(), self.run_button)

    def _browse(self) -> None:
        start = from_root(self._context.form.config.general.workspace_dir) / "runs"
        start = start if start.is_dir() else start.parent
        folder = self._context.interaction.ask_folder("The folder of a run, or of one of its backups", start)
        if folder is not None:
            self._use_run(folder)


class GridCard:
    """The number of images, the two axes of a grid, and the folder of wildcards."""

    def __init__(self, master: tk.Misc, context: Context, session: SampleSession) -> None:
        theme, px = context.theme, context.theme.px
        self.card = Card(master, theme, "Images and grid")
        self._context = context
        body = Panel(self.card.body, theme, "card")
        body.pack(fill="x", padx=(px(12), 0))
        body.columnconfigure(1, weight=1)
        choices = session.choices
        self.num_images = TextVar(master=body, value=str(choices.num_images))
        self._label(body, 0, "Images", _HELP["num_images"])
        tk.Grid.grid_configure(Entry(body, theme, self.num_images, width=70), row=0, column=1, sticky="w", pady=px(4))
        self.axes: dict[str, tuple[TextVar, TextVar]] = {}
        for row, (name, axis) in enumerate((("x", choices.x), ("y", choices.y)), 1):
            self._add_axis(body, 2 * row, name, axis)
        self._label(body, 8, "Wildcards", _HELP["wildcards"])
        self.wildcards = TextVar(master=body, value=choices.wildcards)
        folder = Panel(body, theme, "card")
        Entry(folder, theme, self.wildcards, placeholder="no folder").pack(side="left", fill="x", expand=True)
        Button(folder, theme, "…", self._browse, on="card", width=36).pack(side="left", padx=(6, 0))
        folder.grid(row=8, column=1, sticky="ew", pady=px(4))

    def choices(self) -> dict[str, Any]:
        """Return the choices, for the session."""
        axes = {
            name: f"{axis.get()}={values.get()}" if axis.get() else "" for name, (axis, values) in self.axes.items()
        }
        return {"num_images": self.num_images.get(), "wildcards": self.wildcards.get(), **axes}

    def _add_axis(self, body: Panel, row: int, name: str, axis: str) -> None:
        theme, px = self._context.theme, self._context.theme.px
        axis_name, _, values_text = axis.partition("=")
        kind, values = TextVar(master=body, value=axis_name), TextVar(master=body, value=values_text)
        self.axes[name] = (kind, values)
        self._label(body, row, "Columns (X)" if name == "x" else "Rows (Y)", "What differs, and its values.")
        choice = Choice(body, theme, kind, {"": "None"} | dict(axis_labels()), width=190)
        tk.Grid.grid_configure(choice, row=row, column=1, sticky="w", pady=(px(4), 0))
        entry = Entry(body, theme, values, placeholder="0, 0.5, 1")

        def follow(*_names: str) -> None:
            if kind.get():
                tk.Grid.grid_configure(entry, row=row + 1, column=1, sticky="ew", pady=(px(4), px(4)))
            else:
                entry.grid_remove()

        kind.trace_add("write", follow)
        self._context.tips.attach(entry, lambda: AXES[kind.get()].help if kind.get() in AXES else "")
        follow()

    def _label(self, body: Panel, row: int, text: str, tip: str) -> None:
        px = self._context.theme.px
        label = Text(body, self._context.theme, text, on="card", colour="label")
        label.grid(row=row, column=0, sticky="nw", padx=(0, px(12)), pady=(px(10), px(4)))
        self._context.tips.attach(label, lambda: f"{text}\n{tip}")

    def _browse(self) -> None:
        folder = self._context.interaction.ask_folder("The folder of wildcard files", from_root(self.wildcards.get()))
        if folder is not None:
            self.wildcards.set(str(folder))
