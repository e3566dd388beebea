"""The Text tab: caption augmentation, and the captions of an image from use to use."""

from __future__ import annotations

import tkinter as tk

from ui.features.concepts.editing import Editing
from ui.features.concepts.preview import PreviewModel
from ui.widgets.card import Card
from ui.widgets.controls import Button
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.theme import GAP, PAD

_FOLLOW_SECONDS = 0.3
_MAX_WRITTEN = 6


class TextTab:
    """The captions of an image as they are written, and as they are trained in its next uses."""

    def __init__(self, frame: Panel, editing: Editing) -> None:
        self.frame = frame
        self._editing = editing
        context, pad = editing.context, editing.context.theme.px(PAD)
        self.model = PreviewModel(context.pump.background, editing.scans, editing.thumbnails)
        card = Card(frame, context.theme, "Captions as they are trained")
        tk.Grid.grid_configure(card, row=0, column=1, sticky="nsew", padx=(0, pad), pady=(pad, 0))
        row = Panel(card.body, context.theme, "card")
        row.pack(fill="x", padx=(pad - 4, 0))
        Button(row, context.theme, "‹", lambda: self.model.step_image(-1), on="card", width=30).pack(side="left")
        self.image_text = Text(row, context.theme, on="card")
        self.image_text.pack(side="left", padx=GAP)
        self.next = Button(row, context.theme, "›", lambda: self.model.step_image(1), on="card", width=30)
        self.next.pack(side="left")
        self.written = WrappedText(card.body, context.theme, colour="muted", on="card")
        self.written.pack(fill="x", padx=(pad - 4, 0), pady=(pad // 2, 0))
        self.trained = WrappedText(card.body, context.theme, on="card")
        self.trained.pack(fill="x", padx=(pad - 4, 0), pady=(pad // 2, 0))
        self.model.changed.subscribe(self._show)

    def follow(self) -> None:
        """Show the captions with the current settings."""
        pump = self._editing.context.pump
        pump.redraw_soon(self, self._follow, at_most_every_seconds=_FOLLOW_SECONDS)

    def close(self) -> None:
        """Cancel the work."""
        self._editing.context.pump.forget(self)
        self.model.close()

    def _follow(self) -> None:
        self.model.follow(self._editing.context.form.config, self._editing.number)

    def _show(self) -> None:
        shown = self.model.shown
        if shown is None:
            self.image_text.set_text("")
            self.written.set_text(self.model.message)
            self.trained.set_text("")
            return
        name = shown.seen.path.name
        self.image_text.set_text(f"{self.model.image + 1:,} of {self.model.num_images:,}: {name}")
        written = [f"• {text}" for text in shown.seen.captions[:_MAX_WRITTEN]] or ["(no caption)"]
        more = len(shown.seen.captions) - _MAX_WRITTEN
        self.written.set_text("\n".join(["As written:", *written, *([f"and {more} more"] if more > 0 else [])]))
        trained = [f"{number + 1}.  {text or '(the empty prompt)'}" for number, text in enumerate(shown.captions)]
        self.trained.set_text("\n".join(["In the run, use by use:", *trained]))
