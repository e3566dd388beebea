"""The config as JSON: to read, to copy, and to load from a text that was pasted or edited."""

from __future__ import annotations

import tkinter as tk
from functools import partial

from modules.config.codec import as_text
from ui.forms.context import Context
from ui.widgets.controls import Button
from ui.widgets.dialog import Window
from ui.widgets.entry import edit_as_usual
from ui.widgets.panel import WrappedText
from ui.widgets.textarea import TextBox
from ui.widgets.theme import GAP, PAD

_ABOUT = (
    "The whole config with its concepts and samples, without tokens. Edit it, or paste a config of Darkroom, "
    "OneTrainer, kohya or ai-toolkit, and load it; Undo restores the one before."
)


class JsonView(Window):
    """Follows the config until the user edits the text; Load then replaces the config."""

    is_single = True

    def __init__(self, context: Context) -> None:
        super().__init__(context.root, context.theme, "Config as JSON")
        self._context = context
        self._config_text = ""
        px, theme = context.theme.px, context.theme
        self.about = WrappedText(self, theme, _ABOUT, colour="muted")
        self.about.pack(fill="x", padx=px(PAD), pady=(px(PAD), px(GAP)))
        footer = self.add_footer(above_px=GAP)
        self._add_text()
        self.copy_button = Button(footer, theme, "Copy all", self.copy)
        self.paste_button = Button(footer, theme, "Paste over it", self.paste)
        self.load_button = Button(footer, theme, "Load this text", self.load, style="primary")
        for button in (self.copy_button, self.paste_button, self.load_button):
            button.pack(side="left", padx=(0, GAP))
        self.redraw_after(context.pump, self.follow, context.form.changed)
        self.show(as_text(context.form.config))
        self.appear(720, 560)
        self.text.focus_set()

    @property
    def is_edited(self) -> bool:
        """Whether the text differs from the config that was shown."""
        return self.text.get("1.0", "end-1c") != self._config_text

    def show(self, text: str) -> None:
        """Show a config."""
        self._config_text = text
        self._set(text)

    def follow(self) -> None:
        """Show the current config, unless the text has been edited."""
        if not self.is_edited:
            self.show(as_text(self._context.form.config))

    def copy(self) -> None:
        """Copy the whole text."""
        self.clipboard_clear()
        self.clipboard_append(self.text.get("1.0", "end-1c"))
        self._context.notify("Copied the config as JSON.")

    def paste(self) -> None:
        """Replace the text by the clipboard's; it is not loaded yet."""
        try:
            text = self.clipboard_get()
        except tk.TclError:
            self._show_message("The clipboard is empty.", "warning")
            return
        self._set(text)
        self._show_message("Press Load to use this text.", "muted")

    def load(self) -> None:
        """Load the text as a config; if it is not one, show why and keep the text."""
        text = self.text.get("1.0", "end-1c")
        self._context.documents.open_text(text, partial(self._show_loaded, text))

    def _show_loaded(self, text: str, is_loaded: bool) -> None:
        if not self.winfo_exists():
            return
        if is_loaded and self.text.get("1.0", "end-1c") != text:  # reading takes a moment
            self._show_message("Loaded, without what you have typed since. Load again to use that, too.", "warning")
        elif is_loaded:
            self.show(as_text(self._context.form.config))
            self._show_message("Loaded. What was converted or not understood is listed in the main window.", "good")
        else:
            problem = self._context.findings.items[0].problem
            self._show_message(f"{problem.message} {problem.advice}".strip(), "error")

    def _add_text(self) -> None:
        box = TextBox(self, self.theme, wrap="none", undo=True)
        box.pack(fill="both", expand=True, padx=self.theme.px(PAD))
        self.text = box.text
        edit_as_usual(self.text)

    def _set(self, text: str) -> None:
        self.text.delete("1.0", "end")
        self.text.insert("1.0", text)
        self.text.edit_reset()

    def _show_message(self, text: str, colour: str) -> None:
        self.about.set_text(text)
        self.about.recolour(colour)
