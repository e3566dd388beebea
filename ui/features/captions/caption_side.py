"""The right side of the caption editor: the open image's name, its caption, and the buttons."""

from __future__ import annotations

import tkinter as tk
from collections import Counter
from collections.abc import Callable, Mapping

from ui.features.captions.caption_panel import CaptionPanel
from ui.forms.context import Context
from ui.widgets.controls import Button
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.theme import PAD

_MAX_NAME_CHARS = 38
_BUTTONS = (
    (
        ("previous", "‹ Previous", "The previous image (Page Up, Alt+Up)"),
        ("next", "Next ›", "The next image (Page Down, Alt+Down)"),
        ("revert", "Revert", "The caption as it was when the image was opened"),
    ),
    (
        ("replace", "Replace…", "Find and replace in all captions (Ctrl+H)"),
        ("auto_captions", "Captions…", "Write captions with a model"),
        ("auto_masks", "Masks…", "Write masks with a model"),
    ),
)


class CaptionSide(Panel):
    """`commands` has the commands of the buttons, by name: previous, next, revert, replace, auto_captions, auto_masks.

    `on_edit(text)` is called when the caption is edited; `counts()` returns how often each tag is used.
    """

    def __init__(
        self,
        master: tk.Misc,
        context: Context,
        *,
        on_edit: Callable[[str], object],
        counts: Callable[[], Counter[str]],
        commands: Mapping[str, Callable[[], object]],
    ) -> None:
        super().__init__(master, context.theme, "card")
        theme, px = context.theme, context.theme.px
        self.name = Text(self, theme, role="strong", on="card")
        self.name.pack(anchor="w")
        self.facts = Text(self, theme, role="small", colour="muted", on="card")
        self.facts.pack(anchor="w", pady=(0, px(6)))
        footer = Panel(self, theme, "card")
        footer.pack(side="bottom", fill="x")
        self.caption = CaptionPanel(self, theme, on_edit=on_edit, counts=counts)
        self.caption.pack(fill="both", expand=True)
        self.note = WrappedText(footer, theme, role="small", colour="warning", on="card")
        self.note.pack(fill="x")
        self.status = WrappedText(footer, theme, role="small", colour="muted", on="card")
        self.status.pack(fill="x", pady=(px(4), px(6)))
        self.buttons: dict[str, Button] = {}
        for row in _BUTTONS:
            line = Panel(footer, theme, "card")
            line.pack(fill="x", pady=(0, px(6)))
            for column, (name, label, tip) in enumerate(row):
                button = Button(line, theme, label, commands[name], on="card", width=40)
                button.grid(row=0, column=column, sticky="ew", padx=(0 if column == 0 else px(PAD) // 3, 0))
                line.columnconfigure(column, weight=1, uniform="buttons")
                context.tips.attach(button, lambda tip=tip: tip)  # type: ignore[misc]
                self.buttons[name] = button

    def show_name(self, name: str) -> None:
        """Show the name of the open image, shortened in the middle if it is long."""
        is_short = len(name) <= _MAX_NAME_CHARS
        self.name.set_text(name if is_short else f"{name[: _MAX_NAME_CHARS - 12]}…{name[-10:]}")
