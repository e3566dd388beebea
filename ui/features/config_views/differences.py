"""A window that lists the differences from the loaded file, a preset or the defaults, and reverts them."""

from __future__ import annotations

from collections.abc import Mapping

from modules.config.presets import Preset
from modules.config.schema import Config
from modules.system.problem import count
from ui.forms.changes import Change, changes, edits_since_start
from ui.forms.context import Context
from ui.forms.records import value_at
from ui.widgets.controls import Button, Choice
from ui.widgets.dialog import Window
from ui.widgets.panel import Panel, Text
from ui.widgets.table import Column, Table
from ui.widgets.theme import GAP, PAD
from ui.widgets.variables import TextVar

AS_LOADED, DEFAULTS, RUN = "loaded", "defaults", "run"
_COLUMNS = (
    Column("#0", "Setting", 290, is_stretched=True, is_fitted=True),
    Column("before", "Reference", 200, is_fitted=True),
    Column("now", "Current", 200, is_fitted=True),
)


class Differences(Window):
    """Follows the config: an entry that becomes equal leaves the list."""

    is_single = True

    def __init__(self, context: Context, reference: str = "") -> None:
        super().__init__(context.root, context.theme, "Differences")
        self.changes: tuple[Change, ...] = ()
        self._context = context
        self._presets: dict[str, Preset] = {p.name: p for p in context.documents.presets()}
        self._configs: dict[str, Config] = {}
        self.reference = TextVar(master=self, value=reference or (AS_LOADED if context.form.is_changed else DEFAULTS))
        px = context.theme.px
        self._add_header(px(PAD))
        self._add_footer()
        self.table = Table(self, context.theme, _COLUMNS)
        self.table.pack(fill="both", expand=True, padx=px(PAD), pady=(0, px(12)))
        self.table.on_events(
            {
                "<Return>": self.go,
                "<Double-Button-1>": self.go,
                "<Delete>": self.revert,
                "<<TreeviewSelect>>": self._enable_buttons,
            }
        )
        self.reference.trace_add("write", lambda *_: self._follow())
        self.redraw_after(context.pump, self._follow, context.form.changed)
        self._follow()
        self.appear(760, 460)
        self.table.tree.focus_set()

    def go(self) -> None:
        """Show the field of the first selected entry; the window stays open."""
        if self.table.selected:
            self._context.navigation.go_to(self.changes[self.table.selected[0]].path)

    def revert(self) -> None:
        """Revert the selected settings to the reference; each can be undone."""
        reference = self._reference()
        selected = [self.changes[index] for index in self.table.selected]
        for change in selected:
            self._context.form.edit(change.path, value_at(reference, change.path))
        if selected:
            self._context.notify(f"Reverted {count(len(selected), 'setting')}. Ctrl+Z undoes it.")
            self._follow()

    def _add_header(self, pad: int) -> None:
        header = Panel(self, self.theme)
        header.pack(fill="x", padx=pad, pady=(pad, 12))
        Text(header, self.theme, "Compare with", colour="label").pack(side="left", padx=(0, GAP))
        self.choice = Choice(header, self.theme, self.reference, self._references(), on="window", width=260)
        self.choice.pack(side="left")
        self.summary = Text(header, self.theme, colour="muted")
        self.summary.pack(side="right")

    def _add_footer(self) -> None:
        footer = self.add_footer(above_px=0)
        self.go_button = Button(footer, self.theme, "Show setting", self.go, width=92)
        self.go_button.pack(side="left")
        self.revert_button = Button(footer, self.theme, "Revert", self.revert, width=92)
        self.revert_button.pack(side="left", padx=(GAP, 0))

    def _references(self) -> Mapping[str, str]:
        loaded = f"{self._context.form.source.name}, as loaded or saved"
        run = {RUN: "The run, as it was started"} if self._context.session.config is not None else {}
        return {
            AS_LOADED: loaded,
            **run,
            DEFAULTS: "The defaults",
            **{f"preset {name}": name for name in self._presets},
        }

    def _reference(self) -> Config:
        name = self.reference.get()
        if name == AS_LOADED:
            return self._context.form.baseline
        if name == RUN and self._context.session.config is not None:
            return self._context.session.config
        if name not in self._configs:
            preset = self._presets.get(name.removeprefix("preset "))
            self._configs[name] = preset.load().config if preset else Config()
        return self._configs[name]

    def _follow(self) -> None:
        references = self._references()
        self.choice.set_choices(references)
        self.table.tree.heading("before", text=references[self.reference.get()])
        config, reference, name = self._context.form.config, self._reference(), self.reference.get()
        if name == RUN:
            self.changes = edits_since_start(config, reference)
        else:
            self.changes = changes(config, reference, with_new_lists=name == AS_LOADED)
        self.table.set_rows([(f" {c.place}", (c.before, c.now), "") for c in self.changes])
        self.summary.set_text(
            f"{count(len(self.changes), 'setting')} differ" if len(self.changes) != 1 else "1 setting differs"
        )
        self._enable_buttons()

    def _enable_buttons(self) -> None:
        for button in (self.go_button, self.revert_button):
            button.set_enabled(bool(self.table.selected))
