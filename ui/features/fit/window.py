"""The window "Fit to my card": the card's size, the proposed settings with what each saves and costs, and Apply."""

from __future__ import annotations

from ui.features.fit.model import Fitting
from ui.forms.context import Context
from ui.widgets.controls import Button
from ui.widgets.dialog import Window
from ui.widgets.entry import Entry
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.table import Column, Table
from ui.widgets.theme import GAP, PAD
from ui.widgets.variables import TextVar

_SIZE = (900, 470)
_COLUMNS = (
    Column("#0", "Setting", 350, is_stretched=True),
    Column("before", "Now", 170),
    Column("now", "Proposed", 170),
    Column("memory", "Memory", 90, "e"),
    Column("time", "Step time", 90, "e"),
)


class FitWindow(Window):
    """Shows the proposed settings before they are applied; closing changes nothing."""

    is_single = True

    def __init__(self, context: Context, fitting: Fitting | None = None) -> None:
        super().__init__(context.root, context.theme, "Fit to my card")
        self.fitting = fitting or Fitting(context.form, context.pump.background)
        self.card = TextVar(master=self)
        self._context = context
        px = context.theme.px
        self._add_header(px(PAD))
        self._add_footer(px(PAD))
        self.table = Table(self, context.theme, _COLUMNS)
        self.table.on_events({"<Return>": self.go, "<Double-Button-1>": self.go})
        self.at_close(
            self.fitting.close,
            self.fitting.changed.subscribe(self._soon),
            context.form.changed.subscribe(self._soon),
            lambda: context.pump.forget(self),
        )
        self._follow()
        self.appear(*_SIZE)
        self.entry.tk_entry.focus_set()

    def compute(self) -> None:
        """Compute for the size in the entry."""
        if self.card.get().strip() != self.fitting.card_text:
            self.fitting.set_card(self.card.get().strip())

    def go(self) -> None:
        """Show the field of the selected row; the window stays open."""
        if self.table.selected:
            self._context.navigation.go_to(self.fitting.rows[self.table.selected[0]].path)

    def apply(self) -> None:
        """Apply the proposed settings and close."""
        message = self.fitting.apply()
        if message:
            self._context.notify(message)
            self.close()

    def _add_header(self, pad: int) -> None:
        px = self.theme.px
        header = Panel(self, self.theme)
        header.pack(fill="x", padx=pad, pady=(pad, px(10)))
        self.size_label = Text(header, self.theme, self.fitting.size_label, colour="label")
        self.size_label.pack(side="left", padx=(0, GAP))
        self.entry = Entry(header, self.theme, self.card, on="window", width=90)
        self.entry.pack(side="left")
        self.entry.tk_entry.bind("<Return>", lambda _e: self.compute())
        self.entry.tk_entry.bind("<FocusOut>", lambda _e: self.compute(), add="+")
        self.card_note = Text(header, self.theme, colour="muted")
        self.card_note.pack(side="left", padx=(px(12), 0))
        self.summary = WrappedText(self, self.theme)
        self.summary.pack(fill="x", padx=pad, pady=(0, px(12)))

    def _add_footer(self, pad: int) -> None:
        footer = Panel(self, self.theme)
        footer.pack(side="bottom", fill="x", padx=pad, pady=(0, pad))
        self.apply_button = Button(footer, self.theme, "Apply", self.apply, style="primary", width=92)
        self.apply_button.pack(side="right")
        Button(footer, self.theme, "Cancel", self.close, width=92).pack(side="right", padx=(0, GAP))
        note = "Times are estimates for a mid-range card: use them to compare."
        Text(footer, self.theme, note, colour="muted", role="small").pack(side="left")

    def _soon(self) -> None:
        self._context.pump.redraw_soon(self, self._follow)

    def _follow(self) -> None:
        fitting = self.fitting
        if fitting.card_text and not self.card.get():
            self.card.set(fitting.card_text)
        self.card_note.set_text(fitting.card_note)
        self.size_label.set_text(fitting.size_label)
        self.entry.mark_invalid(fitting.stage == "failed" and bool(fitting.card_text))
        fails = fitting.stage == "failed" or (fitting.fit is not None and not fitting.fit.fits)
        self.summary.recolour("warning" if fails else "muted" if fitting.stage != "ready" else "text")
        self.summary.set_text(fitting.message)
        self.table.set_rows([(f" {r.place}", (r.before, r.now, r.memory, r.time), "") for r in fitting.rows])
        if fitting.rows:
            self.table.pack(fill="both", expand=True, padx=self.theme.px(PAD), pady=(0, self.theme.px(12)))
        else:
            self.table.pack_forget()
        self.apply_button.set_enabled(fitting.can_apply)
