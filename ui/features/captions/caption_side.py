"""The right side of the caption editor: the image's name, its caption as text and as tags."""

from __future__ import annotations

import tkinter as tk
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from ui.features.captions.image_set import (
    DELIMITER,
    line_at,
    line_of_tags,
    move_tag,
    suggestions,
    tags_of,
    with_tag,
    without_tag,
)
from ui.forms.context import Context
from ui.widgets.chips import Chips
from ui.widgets.controls import Button
from ui.widgets.entry import Entry, edit_as_usual
from ui.widgets.panel import Panel, Text, WrappedText, call_later, focused_widget
from ui.widgets.textarea import colour_text
from ui.widgets.theme import GAP, PAD, Theme
from ui.widgets.variables import TextVar

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
_OFFERS = (
    ("use_files", "Use the text files", "Train the concept with the captions that are edited here"),
    ("use_masks", "Use masks", "Switch masked training on (Data page)"),
)


class CaptionSide(Panel):
    """`commands` has the commands of the buttons, by name: previous, next, revert, replace, auto_captions, auto_masks,
    use_files and use_masks; the last two are shown by `offer`.

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
        self.offers: dict[str, Button] = {}
        for name, label, tip in _OFFERS:
            self.offers[name] = Button(footer, theme, label, commands[name], on="card")
            context.tips.attach(self.offers[name], lambda tip=tip: tip)  # type: ignore[misc]
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

    def offer(self, name: str, *, is_offered: bool) -> None:
        """Offer a change of the config with which what is edited here is used in training, or no longer."""
        button = self.offers[name]
        if is_offered and not button.winfo_manager():
            button.pack(anchor="w", pady=(self.theme.px(4), 0), after=self.note)
        elif not is_offered:
            button.pack_forget()

    def show_name(self, name: str) -> None:
        """Show the name of the open image, shortened in the middle if it is long."""
        is_short = len(name) <= _MAX_NAME_CHARS
        self.name.set_text(name if is_short else f"{name[: _MAX_NAME_CHARS - 12]}…{name[-10:]}")


_SENTENCE_CHARS = 60
_HINT = "Write what the image shows, as tags or as a sentence. It is saved when you open another image."
_NO_TAGS = "Tags of this line, separated by commas, appear here."


class CaptionPanel(Panel):
    """Calls `on_edit(text)` when the user changed the caption; `show` displays another one."""

    def __init__(
        self, master: tk.Misc, theme: Theme, *, on_edit: Callable[[str], object], counts: Callable[[], Counter[str]]
    ) -> None:
        super().__init__(master, theme, "card")
        self._on_edit, self._counts = on_edit, counts
        self._known_text = ""
        px = theme.px
        self.columnconfigure(0, weight=1)
        self.rowconfigure(0, weight=3)
        self.rowconfigure(3, weight=2)
        self._border = Panel(self, theme, "field_border")
        self._border.grid(row=0, column=0, sticky="nsew")
        self.text = tk.Text(
            self._border, height=4, width=10, wrap="word", borderwidth=0, highlightthickness=0, undo=True,
            autoseparators=True, maxundo=-1, font=theme.font("body"), padx=px(8), pady=px(6), spacing3=px(3),
        )  # fmt: skip
        self.text.pack(fill="both", expand=True, padx=1, pady=1)
        edit_as_usual(self.text)
        self.text.bind("<<Modified>>", self._follow_typing)
        for sequence in ("<KeyRelease>", "<ButtonRelease-1>"):
            self.text.bind(sequence, lambda _e: self._show_tags(), add="+")
        self.text.bind("<Tab>", lambda _e: self._focus_entry())
        self.hint = WrappedText(self.text, theme, _HINT, colour="faint", on="field")
        self.hint.bind("<Button-1>", lambda _e: self.focus_text())
        self.problem = WrappedText(self, theme, role="small", colour="warning", on="card")
        self.problem.grid(row=1, column=0, sticky="ew")
        self.variable = TextVar(master=self)
        self.entry = Entry(self, theme, self.variable, placeholder="Add a tag")
        self.entry.grid(row=2, column=0, sticky="ew", pady=GAP)
        self.chips = Chips(self, theme, on_remove=self._remove, on_move=self._move)
        self.chips.grid(row=3, column=0, sticky="nsew")
        self.list = tk.Listbox(
            self, borderwidth=0, highlightthickness=1, activestyle="none", exportselection=False,
            font=theme.font("small"), takefocus=False,
        )  # fmt: skip
        self.list.bind("<ButtonRelease-1>", lambda _e: self._accept())
        self._suggestions: tuple[str, ...] = ()
        self._trace = self.variable.trace_add("write", lambda *_: self._suggest())
        inner = self.entry.tk_entry
        for key, by in (("<Down>", 1), ("<Up>", -1)):
            inner.bind(key, lambda _e, by=by: self._choose(by))  # type: ignore[misc]
        inner.bind("<Return>", lambda _e: self._accept())
        inner.bind("<Escape>", lambda _e: self._hide())
        inner.bind("<FocusOut>", lambda _e: call_later(self, "idle", self._hide_unless_used), add="+")
        self.apply_theme()

    def apply_theme(self) -> None:
        """Apply the colours of the current mode."""
        super().apply_theme()
        colour = self.theme.colour
        if hasattr(self, "list"):
            colour_text(self.text, self.theme)
            self.list.configure(
                background=colour("field"), foreground=colour("text"), selectbackground=colour("selection"),
                selectforeground=colour("text"), highlightbackground=colour("accent"), highlightcolor=colour("accent"),
            )  # fmt: skip

    def show(self, text: str, *, is_editable: bool, problem: str = "", keeps_undo: bool = False) -> None:
        """Show a caption. Its undo history begins anew, unless it is an edit of the one that is shown."""
        self.text.configure(state="normal")
        if text != self._known_text or text != self._content():
            self.text.delete("1.0", "end")
            self.text.insert("1.0", text)
        if not keeps_undo:
            self.text.edit_reset()
            self.text.mark_set("insert", f"{line_of_tags(text) + 1}.end")
            self.text.see("insert")
        self._known_text = self._content()  # as Tk returns it: only what the user changes then is an edit
        self.text.edit_modified(False)
        self.text.configure(state="normal" if is_editable else "disabled")
        self.entry.set_enabled(is_editable)
        self.problem.set_text(problem)
        self._show_tags()

    def add_tag(self, tag: str) -> None:
        """Add a tag to the line at the cursor."""
        line = self._line_number()
        self._replace_line(with_tag(line_at(self._content(), line), tag))

    def destroy(self) -> None:
        """Also unsubscribe from the variable."""
        self.variable.trace_remove("write", self._trace)
        super().destroy()

    def focus_text(self) -> str:
        """Give the keyboard to the text of the caption."""
        self.text.focus_set()
        return "break"  # a click on a label elsewhere takes the focus away again

    # -- text

    def _content(self) -> str:
        return self.text.get("1.0", "end-1c")

    def _line_number(self) -> int:
        return int(self.text.index("insert").split(".")[0]) - 1

    def _follow_typing(self, _event: object) -> None:
        if not self.text.edit_modified():
            return
        self.text.edit_modified(False)
        content = self._content()
        if content != self._known_text:
            self._known_text = content
            self._on_edit(content)
            self._show_tags()

    def _replace_line(self, new: str) -> None:
        """Replace the line at the cursor as one step of the undo history."""
        number = self._line_number() + 1
        if self.text.cget("state") == "disabled" or new == self.text.get(f"{number}.0", f"{number}.end"):
            return
        self.text.edit_separator()
        self.text.replace(f"{number}.0", f"{number}.end", new)
        self.text.edit_separator()
        self.text.mark_set("insert", f"{number}.end")
        self._follow_typing(None)

    # -- tags

    def _show_tags(self) -> None:
        line = line_at(self._content(), self._line_number())
        is_sentence = DELIMITER not in line and len(line) > _SENTENCE_CHARS
        self.chips.show(() if is_sentence else tags_of(line), _NO_TAGS)
        self._place_hint()

    def _place_hint(self) -> None:
        """Explain an empty caption, below the cursor."""
        px = self.theme.px
        if self._content() or self.text.cget("state") == "disabled":
            self.hint.place_forget()
        elif not self.hint.winfo_manager():
            self.hint.place(x=px(8), y=px(30), relwidth=1.0, width=-px(16))

    def _remove(self, index: int) -> None:
        self._replace_line(without_tag(line_at(self._content(), self._line_number()), index))

    def _move(self, index: int, to: int) -> None:
        self._replace_line(move_tag(line_at(self._content(), self._line_number()), index, to))

    # -- suggestions

    def _focus_entry(self) -> str:
        self.entry.tk_entry.focus_set()
        return "break"

    def _suggest(self) -> None:
        counts = self._counts()
        line = line_at(self._content(), self._line_number())
        self._suggestions = suggestions(self.variable.get(), counts, present=tags_of(line))
        self.list.delete(0, "end")
        for tag in self._suggestions:
            self.list.insert("end", f"  {tag}   {counts[tag]:,}")
        if not self._suggestions:
            self.list.place_forget()
            return
        self.list.configure(height=len(self._suggestions))
        self.list.place(in_=self.entry, relx=0, rely=1.0, y=2, relwidth=1.0)
        self.list.lift()

    def _choose(self, by: int) -> str:
        selected = self._find_selected()
        if self._suggestions:
            place = min(len(self._suggestions) - 1, max(-1, selected + by))
            self.list.selection_clear(0, "end")
            if place >= 0:
                self.list.selection_set(place)
        return "break"

    def _find_selected(self) -> int:
        """Return the number of the chosen suggestion; -1 without one."""
        selection: Any = self.list.tk.call(self.list, "curselection")
        numbers = self.list.tk.splitlist(selection)
        return int(numbers[0]) if numbers else -1

    def _accept(self) -> str:
        selected = self._find_selected()
        tag = self._suggestions[selected] if 0 <= selected < len(self._suggestions) else self.variable.get()
        if tag.strip():
            self.add_tag(tag)
        self.variable.set("")
        return "break"

    def _hide(self) -> str | None:
        """Hide the suggestions; without any, Escape closes the window as everywhere."""
        if not self.list.winfo_ismapped():
            return None
        self.list.place_forget()
        return "break"

    def _hide_unless_used(self) -> None:
        if self.winfo_exists() and focused_widget(self) not in (self.list, self.entry.tk_entry):
            self.list.place_forget()
