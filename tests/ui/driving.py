"""Driving forms in tests, through the widgets of their rows, as a user would."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from modules.settings.every import Every
from modules.settings.field import FieldRecord
from ui.forms.fields import Row
from ui.forms.records import available_choices, name_of
from ui.forms.values import to_text
from ui.widgets.controls import Button, Choice, Switch
from ui.widgets.entry import Entry
from ui.widgets.files.dialog import FileDialog
from ui.widgets.panel import Text
from ui.widgets.textarea import TextArea
from ui.widgets.theme import COLOURS

W = TypeVar("W", bound=tk.Misc)


def inside(widget: tk.Misc, kind: type[W]) -> W:
    """Return the first widget of a kind in a widget, itself included."""
    return next(w for w in walk(widget) if isinstance(w, kind))


def walk(widget: tk.Misc) -> Iterator[tk.Misc]:
    """Yield a widget and everything in it."""
    yield widget
    for child in widget.winfo_children():
        yield from walk(child)


def texts_in(widget: tk.Misc) -> list[str]:
    """Return the texts of a widget; those that are empty show nothing."""
    return [text for w in walk(widget) if isinstance(w, Text) and (text := str(w.cget("text")))]


def tip_of(root: tk.Tk) -> str:
    """Return the text of the tip that can be seen, or an empty text."""
    tips = [w for w in root.winfo_children() if isinstance(w, tk.Toplevel) and w.overrideredirect()]
    return "".join(str(inside(tip, tk.Label).cget("text")) for tip in tips if tip.winfo_viewable())


def main_buttons(window: tk.Misc) -> list[str]:
    """Return the labels of the orange buttons of a window that can be seen."""
    shown = [w for w in walk(window) if isinstance(w, Button) and w.winfo_viewable() and w.winfo_toplevel() is window]
    return [str(b.cget("text")) for b in shown if b.cget("fg_color") == COLOURS["accent"]]


def type_into(entry: Entry, text: str) -> None:
    """Replace an entry's text key by key."""
    inner = entry.tk_entry
    inner.focus_force()
    inner.update()
    inner.delete(0, "end")
    keysyms = {".": "period", "-": "minus", ",": "comma", " ": "space", "/": "slash", "_": "underscore"}
    for char in text:
        inner.event_generate("<KeyPress>", keysym=keysyms.get(char, char))
    inner.update()


def fill(entry: Entry, text: str) -> None:
    """Replace an entry's text at once."""
    entry.tk_entry.delete(0, "end")
    entry.tk_entry.insert(0, text)


def pick(choice: Choice, name: str) -> None:
    """Choose from the menu that opens."""
    choice.menu.invoke(list(choice.choices).index(name))


def answer_file_dialog(root: tk.Tk, path: Path) -> None:
    """Type a path into the file dialog that opens next and press Return, as a user would."""

    def look(times_left: int) -> None:
        dialog = next((w for w in root.winfo_children() if isinstance(w, FileDialog) and w.grab_status()), None)
        if dialog is not None and dialog.path.get():
            entry = dialog.path_entry.tk_entry
            entry.focus_force()
            entry.update()  # a key goes to the widget that has the focus
            entry.delete(0, "end")
            entry.insert(0, str(path))
            entry.event_generate("<Return>")
        elif times_left:
            root.after(20, look, times_left - 1)

    root.after(20, look, 6000)  # two minutes, as elsewhere


def drop(over: tk.Misc, *paths: Path) -> None:
    """Drop files on a widget: run the drop binding of its nearest ancestor that has one, as tkdnd does."""
    target: tk.Misc | None = over
    while target is not None and not target.tk.call("bind", str(target), "<<Drop>>"):
        target = target.master
    assert target is not None, "no widget accepts the drop"
    script = str(target.tk.call("bind", str(target), "<<Drop>>"))
    data = tk._join([tk._join([str(p) for p in paths])])  # a list within a list, as Tcl writes it
    texts = {"%W": str(target), "%D": data, "%e": "<<Drop>>", "%X": "1", "%Y": "1", "%A": "copy", "%b": "1"}
    for name in ("%CST", "%CTT", "%ST", "%TT", "%a", "%C", "%c", "%L", "%m", "%T", "%t"):
        script = script.replace(name, "copy")
    for name, text in texts.items():
        script = script.replace(name, text)
    target.tk.eval(script)


def flip(switch: Switch) -> None:
    """Click a switch."""
    switch._canvas.event_generate("<Button-1>")


def shown_by(row: Row) -> str:
    """Return the content of a row's widgets, in the form of `expected`."""
    frame, record = row.control.frame, row.record
    match record.kind:
        case "bool":
            return str(bool(inside(frame, Switch).get()))
        case "choice" | "section":
            return str(inside(frame, Choice).get())
        case "every":
            return f"{inside(frame, Entry).tk_entry.get()} {inside(frame, Choice).get()}"
        case "text" if record.setting.multiline:
            return inside(frame, TextArea).text.get("1.0", "end-1c")
        case _:
            return inside(frame, Entry).tk_entry.get()


def expected(record: FieldRecord, value: Any) -> str:
    """Return the expected content of a row for a value."""
    match record.kind:
        case "bool":
            return str(value)
        case "choice" | "section":
            name = name_of(value)
            return available_choices(record, name)[name]
        case "every":
            return f"{value.n:g} {value.unit if value.unit == 'never' else value.unit + 's'}"
        case _:
            return to_text(record, value)


def change(row: Row) -> Any:
    """Change the field of a row through its widgets; return the expected value."""
    frame, record = row.control.frame, row.record
    match record.kind:
        case "bool":
            flip(inside(frame, Switch))
            return not record.default
        case "choice" | "section":
            choices = inside(frame, Choice).choices
            other = next((n for n, label in choices.items() if label != shown_by(row)), None)
            if other is not None:
                pick(inside(frame, Choice), other)
            return other
        case "every":
            pick(inside(frame, Choice), "minute")
            fill(inside(frame, Entry), "7")
            return Every(n=7, unit="minute")
        case "text":
            if record.setting.multiline:
                inside(frame, TextArea).text.insert("end", "more\nlines")
                frame.update()
                return f"{record.default}more\nlines"
            fill(inside(frame, Entry), "something else")
            return "something else"
        case "int_list" | "resolutions":
            fill(inside(frame, Entry), "64, 128")
            return (64, 128)
        case _:
            value = other_number(record)
            fill(inside(frame, Entry), to_text(record, value))
            return value


def other_number(record: FieldRecord) -> float:
    """Return a number in a field's range that is not its default."""
    step = record.step or (1 if record.kind == "int" else 0.25)
    default = record.default or 0
    up = default + step
    is_possible = record.hi is None or up < record.hi or (up == record.hi and not record.hi_is_open)
    value = up if is_possible else default - step
    return int(value) if record.kind == "int" else float(value)
