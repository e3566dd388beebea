"""A text entry bound to a variable."""

from __future__ import annotations

import tkinter as tk
import tkinter.font as tkfont
from typing import Any

from ui.widgets.ctk import ctk, release_master
from ui.widgets.panel import Text, call_later
from ui.widgets.theme import CONTROL_HEIGHT, Theme

_HINT_LEFT_PX = 11  # right of the cursor, which stays visible in an empty entry


class Entry(ctk.CTkEntry):  # type: ignore[misc]
    """A line of text bound to a variable, with a placeholder and a border that marks invalid text.

    With `shows_end` the end of a longer text is in sight while it is not edited, as of a path.
    """

    def __init__(
        self,
        master: tk.Misc,
        theme: Theme,
        variable: tk.StringVar,
        *,
        on: str = "card",
        width: int = 120,
        placeholder: str = "",
        shows_end: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(
            master,
            textvariable=variable,
            width=width,
            height=CONTROL_HEIGHT,
            corner_radius=6,
            border_width=1,
            bg_color=theme.pair(on),
            fg_color=theme.pair("field"),
            border_color=theme.pair("field_border"),
            text_color=theme.pair("text"),
            font=theme.unscaled_font("body"),
            **options,
        )
        release_master(master)
        self._theme_tokens = theme
        self._is_invalid = False
        self._has_focus = False
        self._hint: Text | None = None
        self._variable = variable
        self._hint_trace = self._end_trace = ""
        self._entry.configure(selectbackground=theme.colour("accent"), selectforeground=theme.colour("on_accent"))
        edit_as_usual(self._entry)
        tk.Misc.bind(self._entry, "<FocusIn>", lambda _e: self._focus_changed(True), add="+")
        tk.Misc.bind(self._entry, "<FocusOut>", lambda _e: self._focus_changed(False), add="+")
        if placeholder:
            self._add_hint(theme, variable, placeholder)
        if shows_end:
            self._end_trace = variable.trace_add("write", lambda *_: call_later(self, "idle", self._show_end))
            tk.Misc.bind(self._entry, "<Configure>", lambda _e: self._show_end(), add="+")
            tk.Misc.bind(self._entry, "<FocusOut>", lambda _e: self._show_end(), add="+")

    @property
    def tk_entry(self) -> tk.Entry:
        """The inner Tk entry, which receives focus and keys."""
        inner: tk.Entry = self._entry
        return inner

    def mark_invalid(self, is_invalid: bool) -> None:
        """Mark the entry as valid or invalid by its border."""
        if is_invalid != self._is_invalid:
            self._is_invalid = is_invalid
            self._draw_border()

    def set_enabled(self, is_enabled: bool) -> None:
        """Enable or disable typing."""
        ink = "text" if is_enabled else "faint"
        self.configure(state="normal" if is_enabled else "disabled", text_color=self._theme_tokens.pair(ink))

    def destroy(self) -> None:
        """Also unsubscribe from the variable."""
        for trace in filter(None, (self._hint_trace, self._end_trace)):
            self._variable.trace_remove("write", trace)
        super().destroy()

    def _focus_changed(self, has_focus: bool) -> None:
        self._has_focus = has_focus
        self._draw_border()

    def _show_end(self) -> None:
        if self.winfo_exists() and not self._has_focus:
            self._entry.xview_moveto(1)

    def _draw_border(self) -> None:
        token = "error" if self._is_invalid else "accent" if self._has_focus else "field_border"
        self.configure(border_color=self._theme_tokens.pair(token))

    def _add_hint(self, theme: Theme, variable: tk.StringVar, text: str) -> None:
        self._hint = Text(self, theme, text, colour="faint", on="field")
        self._hint.bind("<Button-1>", self._hint_clicked)
        self._hint_trace = variable.trace_add("write", lambda *_: self._place_hint())
        self._place_hint()

    def _hint_clicked(self, _event: object) -> str:
        self._entry.focus_set()
        return "break"  # a click on a label elsewhere takes the focus away again

    def _place_hint(self) -> None:
        if self._hint is None:
            return
        if self._variable.get() == "":
            self._hint.place(x=self._theme_tokens.px(_HINT_LEFT_PX), rely=0.5, anchor="w")
            self._hint.lift()
        else:
            self._hint.place_forget()


def hint_width(theme: Theme, hint: str) -> int:
    """Return the width of an entry that shows a placeholder in full, in design pixels."""
    if not hint:
        return 0
    return round(tkfont.Font(font=theme.font("body")).measure(hint) / theme.scale) + 22


def edit_as_usual(widget: tk.Entry | tk.Text) -> None:
    """Make Ctrl+A select everything and a paste replace the selection, which Tk on X11 does not do."""

    def select_all(_event: object) -> str:
        if isinstance(widget, tk.Entry):
            widget.select_range(0, "end")
            widget.icursor("end")
        else:
            widget.tag_add("sel", "1.0", "end-1c")
        return "break"

    def paste(_event: object) -> None:
        has_selection = widget.select_present() if isinstance(widget, tk.Entry) else bool(widget.tag_ranges("sel"))
        if has_selection:
            widget.delete("sel.first", "sel.last")

    for sequence in ("<Control-a>", "<Control-A>"):
        widget.bind(sequence, select_all)
    widget.bind("<<Paste>>", paste)
