"""A multi-line text bound to a variable."""

from __future__ import annotations

import tkinter as tk
import tkinter.font as tkfont
from typing import Any, Literal

from ui.widgets.auto_bar import AutoBar
from ui.widgets.entry import edit_as_usual
from ui.widgets.panel import Panel, Text, focused_widget
from ui.widgets.theme import Theme

_SIZE_PX = 12


def colour_text(text: tk.Text, theme: Theme) -> None:
    """Give a text the colours of a field in the current mode."""
    colour = theme.colour
    text.configure(background=colour("field"), foreground=colour("text"), insertbackground=colour("text"))
    text.configure(selectbackground=colour("accent"), selectforeground=colour("on_accent"))


class TextBox(Panel):
    """A long text in a font of one width, with a scroll bar: `text` is the text itself."""

    def __init__(self, master: tk.Misc, theme: Theme, *, wrap: Literal["none", "word"], **options: Any) -> None:
        super().__init__(master, theme, "field")
        family = tkfont.nametofont("TkFixedFont", root=self).actual("family")
        self.text = tk.Text(
            self, font=(family, -theme.px(_SIZE_PX)), wrap=wrap, borderwidth=0, highlightthickness=0, padx=theme.px(10),
            pady=theme.px(8), width=1, height=1, **options,
        )  # fmt: skip
        bar = AutoBar(self, theme, self.text.yview, on="field")
        self.text.configure(yscrollcommand=bar.set)
        bar.pack(side="right", fill="y")
        self.text.pack(side="left", fill="both", expand=True)
        self.apply_theme()

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        super().apply_theme()
        colour_text(self.text, self.theme)


class TextArea(tk.Frame):
    """A bordered text of several lines, always in sync with the variable."""

    def __init__(
        self, master: tk.Misc, theme: Theme, variable: tk.StringVar, *, lines: int = 3, placeholder: str = ""
    ) -> None:
        super().__init__(master, borderwidth=0, padx=1, pady=1)
        self.theme = theme
        self._variable = variable
        self._is_invalid = False
        self.text = tk.Text(
            self,
            height=lines,
            width=20,
            wrap="word",
            borderwidth=0,
            highlightthickness=0,
            font=theme.font("body"),
            padx=theme.px(8),
            pady=theme.px(6),
            undo=False,
        )
        self.text.pack(fill="both", expand=True)
        self.text.bind("<<Modified>>", self._typed)
        edit_as_usual(self.text)
        self.text.bind("<Tab>", self._next)
        self.text.bind("<FocusIn>", lambda _e: self._draw_border(has_focus=True))
        self.text.bind("<FocusOut>", lambda _e: self._draw_border(has_focus=False))
        self._hint = Text(self.text, theme, placeholder, colour="faint", on="field") if placeholder else None
        if self._hint is not None:
            self._hint.bind("<Button-1>", self._hint_clicked)
        self._trace = variable.trace_add("write", lambda *_: self._show())
        self.apply_theme()
        self._show()

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        colour_text(self.text, self.theme)
        self._draw_border(has_focus=False)

    def mark_invalid(self, is_invalid: bool) -> None:
        """Mark the text as valid or invalid by its border."""
        self._is_invalid = is_invalid
        self._draw_border(has_focus=focused_widget(self) is self.text)

    def destroy(self) -> None:
        """Also unsubscribe from the variable."""
        self._variable.trace_remove("write", self._trace)
        super().destroy()

    def _draw_border(self, *, has_focus: bool) -> None:
        token = "error" if self._is_invalid else "accent" if has_focus else "field_border"
        self.configure(background=self.theme.colour(token))
        self._place_hint(has_focus=has_focus)

    def _hint_clicked(self, _event: object) -> str:
        self.text.focus_set()
        return "break"  # a click on a label elsewhere takes the focus away again

    def _place_hint(self, *, has_focus: bool) -> None:
        if self._hint is None:
            return
        if self._variable.get() == "" and not has_focus:
            self._hint.place(x=0, y=0, anchor="nw")
        else:
            self._hint.place_forget()

    def _typed(self, _event: object) -> None:
        if self.text.edit_modified():
            self.text.edit_modified(False)
            content = self._content()
            if content != self._variable.get():
                self._variable.set(content)

    def _show(self) -> None:
        if self._content() != self._variable.get():
            self.text.delete("1.0", "end")
            self.text.insert("1.0", self._variable.get())
            self.text.edit_modified(False)
        self._place_hint(has_focus=focused_widget(self) is self.text)

    def _content(self) -> str:
        return self.text.get("1.0", "end-1c")

    def _next(self, _event: object) -> str:
        following = self.text.tk_focusNext()
        if following is not None:
            following.focus_set()
        return "break"
