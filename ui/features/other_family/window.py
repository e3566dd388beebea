"""The window "Train this dataset on another family": the family, its preset, what is left out, and all changes."""

from __future__ import annotations

from collections.abc import Mapping

from ui.features.other_family.model import Moving
from ui.forms.context import Context
from ui.widgets.controls import Button, Choice
from ui.widgets.dialog import Window
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.table import Column, Table
from ui.widgets.theme import GAP, PAD
from ui.widgets.variables import TextVar

_SIZE = (920, 640)
_COLUMNS = (
    Column("#0", "Setting", 340, is_stretched=True),
    Column("before", "Now", 210, is_fitted=True),
    Column("now", "Then", 250, is_fitted=True),
)


class OtherFamily(Window):
    """Shows what would change before it does; closing changes nothing."""

    is_single = True

    def __init__(self, context: Context, moving: Moving | None = None) -> None:
        super().__init__(context.root, context.theme, "Train this dataset on another family")
        self.moving = moving or Moving(context.form, context.pump.background)
        self.family, self.preset = TextVar(master=self), TextVar(master=self)
        self._context = context
        px = context.theme.px
        self._add_header(px(PAD))
        self._add_footer(px(PAD))
        self.notes = WrappedText(self, context.theme, anchor="nw", justify="left")
        self.notes.pack(fill="x", padx=px(PAD), pady=(0, px(12)))
        self.table = Table(self, context.theme, _COLUMNS)
        self.table.pack(fill="both", expand=True, padx=px(PAD), pady=(0, px(12)))
        self._unsubscribe = (
            self.moving.changed.subscribe(self._soon),
            context.form.changed.subscribe(lambda: context.pump.redraw_soon((self, "move"), self.moving.compute)),
        )
        self.moving.compute()
        self._follow()
        self.appear(*_SIZE)

    def apply(self) -> None:
        """Load the config for the other family and close."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()  # the present config will be of the chosen family
        if self.moving.apply(self._context.documents):
            self.close()

    def destroy(self) -> None:
        """Also drop what is still being read and unsubscribe."""
        self.moving.close()
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._context.pump.forget(self)
        self._context.pump.forget((self, "move"))
        super().destroy()

    def _add_header(self, pad: int) -> None:
        header = Panel(self, self.theme)
        header.pack(fill="x", padx=pad, pady=(pad, self.theme.px(10)))
        Text(header, self.theme, "Train on", colour="label").pack(side="left", padx=(0, GAP))
        families = self.moving.families
        self.family_choice = Choice(
            header, self.theme, self.family, families, on="window", width=230, command=self.moving.set_family
        )
        self.family_choice.pack(side="left")
        Text(header, self.theme, "with", colour="label").pack(side="left", padx=GAP)
        self.preset_choice = Choice(
            header, self.theme, self.preset, {}, on="window", width=300, command=self.moving.set_preset
        )
        self.preset_choice.pack(side="left")
        self.summary = WrappedText(self, self.theme, colour="muted")
        self.summary.pack(fill="x", padx=pad, pady=(0, self.theme.px(12)))

    def _add_footer(self, pad: int) -> None:
        footer = Panel(self, self.theme)
        footer.pack(side="bottom", fill="x", padx=pad, pady=(0, pad))
        self.apply_button = Button(footer, self.theme, "Change to it", self.apply, style="primary", width=110)
        self.apply_button.pack(side="right")
        Button(footer, self.theme, "Cancel", self.close, width=92).pack(side="right", padx=(0, GAP))

    def _soon(self) -> None:
        self._context.pump.redraw_soon(self, self._follow)

    def _follow(self) -> None:
        moving = self.moving
        self.family_choice.set_choices(moving.families)
        self.preset_choice.set_choices(moving.presets)
        for variable, value in ((self.family, moving.family), (self.preset, moving.preset)):
            if variable.get() != value:
                variable.set(value)
        self.summary.set_text(moving.summary)
        self.notes.set_text("\n".join(f"•  {note}" for note in moving.notes))
        self.table.set_rows([(f" {c.place}", (c.before, c.now), "") for c in moving.changes])
        self.apply_button.set_enabled(moving.result is not None)


def open_other_family(context: Context, family: str = "", settings: Mapping[str, object] | None = None) -> OtherFamily:
    """Open the window, with a family and the settings that name its base model if they are given.

    One that is already open is closed.
    """
    return OtherFamily(context, Moving(context.form, context.pump.background, family, settings))
