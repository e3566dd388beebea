"""One row of a form: label, control, unit and note, built from the field's record alone."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

from modules.config.records import describe_needs
from modules.settings.every import Unit
from modules.settings.field import FieldRecord
from modules.system.paths import as_config_path, folder_for_images, from_root
from modules.system.problem import Problem
from ui.forms.binding import (
    Binding,
    ChoiceBinding,
    EveryBinding,
    FlagBinding,
    TextBinding,
    choose_from_list,
    explanation,
    tip_of,
)
from ui.forms.context import Context
from ui.forms.records import support_note
from ui.forms.weighted_files import WeightedFiles
from ui.widgets.controls import Button, Choice, Switch
from ui.widgets.entry import Entry, hint_width
from ui.widgets.menu import make_menu, open_at
from ui.widgets.panel import Panel, Text, WrappedText, call_later
from ui.widgets.textarea import TextArea
from ui.widgets.variables import FlagVar, TextVar

NUMBER_WIDTH = 110
BASE_MODEL = "model.base_model"  # which has a window of its own
_INDENT = 14
_FLASH_MS = 1600
_UNIT_LABELS = {unit: unit if unit == "never" else f"{unit}s" for unit in get_args(Unit)}


@dataclass(frozen=True, slots=True)
class Control:
    """The widgets of a field's value."""

    frame: tk.Widget
    binding: Binding
    focus: Callable[[], None]
    mark_invalid: Callable[[bool], None]
    is_wide: bool = True


Maker = Callable[[tk.Misc, Context, FieldRecord], Control]


def make_control(master: tk.Misc, context: Context, record: FieldRecord) -> Control:
    """Return the control for a field, by its kind."""
    if record.kind == "text" and record.setting.multiline:
        return _text_area(master, context, record)
    if record.kind == "text" and record.setting.path_kind:
        return _path(master, context, record)
    return _MAKERS[record.kind](master, context, record)


def _ignore(_is_invalid: bool) -> None:
    """Do nothing: this control cannot hold an invalid entry."""


def _number(master: tk.Misc, context: Context, record: FieldRecord) -> Control:
    frame = Panel(master, context.theme, "card")
    variable = TextVar(master=frame)
    hint = record.setting.empty_means if record.optional else ""
    width = NUMBER_WIDTH + 60 if hint or record.kind in ("int_list", "resolutions") else NUMBER_WIDTH
    entry = Entry(frame, context.theme, variable, width=max(width, hint_width(context.theme, hint)), placeholder=hint)
    entry.pack(side="left")
    if record.setting.unit:
        Text(frame, context.theme, record.setting.unit, role="small", colour="muted", on="card").pack(
            side="left", padx=(context.theme.px(8), 0)
        )
    return _typed_control(frame, context, record, entry, variable, is_wide=False)


def _line(master: tk.Misc, context: Context, record: FieldRecord) -> Control:
    variable = TextVar(master=master)
    entry = Entry(master, context.theme, variable, placeholder=record.setting.empty_means)
    return _typed_control(entry, context, record, entry, variable)


def _typed_control(
    frame: tk.Widget,
    context: Context,
    record: FieldRecord,
    entry: Entry,
    variable: tk.StringVar,
    *,
    is_wide: bool = True,
) -> Control:
    binding = TextBinding(context.form, record, variable)
    tk.Misc.bind(entry.tk_entry, "<FocusOut>", lambda _e: binding.tidy(), add="+")
    return Control(frame, binding, entry.tk_entry.focus_set, entry.mark_invalid, is_wide)


def _path(master: tk.Misc, context: Context, record: FieldRecord) -> Control:
    frame = Panel(master, context.theme, "card")
    variable = TextVar(master=frame)
    entry = Entry(frame, context.theme, variable, placeholder=record.setting.empty_means, shows_end=True)
    label = "Choose…" if record.path == BASE_MODEL else "…"
    browse = Button(frame, context.theme, label, lambda: press(), on="card", width=36)
    entry.pack(side="left", fill="x", expand=True)
    browse.pack(side="left", padx=(6, 0))

    def press() -> None:
        if record.path == BASE_MODEL:
            context.links.choose_base_model(context)
        elif record.setting.path_kind == "model":
            open_at(browse_menu(browse, context, record), browse)
        else:
            _browse(context, record)

    return _typed_control(frame, context, record, entry, variable)


def browse_menu(button: tk.Misc, context: Context, record: FieldRecord) -> tk.Menu:
    """Return the menu of a model's path, which may be a file or a folder."""
    menu = make_menu(button, context.theme)
    menu.add_command(label="File…", command=partial(_browse, context, record, "file"))
    menu.add_command(label="Folder…", command=partial(_browse, context, record, "folder"))
    return menu


def _browse(context: Context, record: FieldRecord, kind: str = "") -> None:
    """Ask for a path, starting at the field's current one, or next to the images for an empty one of a concept.

    Without a `kind`, the field's own kind of path is used.
    """
    value, entry = str(context.form.value(record.path) or ""), record.path.partition(".")[0]
    usual = folder_for_images(c.path for c in context.form.config.concepts) if entry == "concepts" else from_root(".")
    now = from_root(value) if value else usual
    start = next((p for p in (now, *now.parents) if p.is_dir()), Path.cwd())
    path: Path | None
    match kind or record.setting.path_kind:
        case "save":
            path = context.interaction.ask_save_file(record.label, now, (("Model", f"*{now.suffix or '.*'}"),))
        case "file":
            path = context.interaction.ask_file(record.label, start, ())
        case _:
            path = context.interaction.ask_folder(record.label, start)
    if path is not None and context.form.has(record.path):  # the form may not be rebuilt yet
        context.form.edit(record.path, as_config_path(path))


class _FilesBinding:
    """A list of files, with strengths if the field has them, and a form model."""

    def __init__(self, context: Context, record: FieldRecord, files: WeightedFiles) -> None:
        self._form, self._record, self._files = context.form, record, files
        self._is_taking = False
        self._unwatch = context.form.watch(record.path, self._show)
        self._show()

    def close(self) -> None:
        """Unsubscribe from the model."""
        self._unwatch()

    def take(self) -> None:
        """Pass the files to the model."""
        has_strength = self._files.has_strength
        if not self._form.has(self._record.path):  # the form is not rebuilt yet
            return
        self._is_taking = True
        value = [{"path": p, "strength": s} if has_strength else p for p, s in self._files.files]
        self._form.edit(self._record.path, value)
        self._is_taking = False

    def _show(self) -> None:
        if not self._is_taking:
            value = self._form.value(self._record.path)
            self._files.set([(str(getattr(v, "path", v)), f"{getattr(v, 'strength', 1):g}") for v in value])


def _files(master: tk.Misc, context: Context, record: FieldRecord) -> Control:
    files = WeightedFiles(
        master,
        context,
        changed=lambda: binding.take(),
        has_strength="strength" in getattr(record.item, "__annotations__", ()),
    )
    binding = _FilesBinding(context, record, files)
    return Control(files, binding, files.add_button.focus_set, _ignore)


def _text_area(master: tk.Misc, context: Context, record: FieldRecord) -> Control:
    variable = TextVar(master=master)
    area = TextArea(master, context.theme, variable, placeholder=record.setting.empty_means)
    binding = TextBinding(context.form, record, variable)
    return Control(area, binding, area.text.focus_set, area.mark_invalid)


def _switch(master: tk.Misc, context: Context, record: FieldRecord) -> Control:
    variable = FlagVar(master=master)
    switch = Switch(master, context.theme, variable)
    return Control(switch, FlagBinding(context.form, record, variable), switch.focus_ring, _ignore, is_wide=False)


def _choice(master: tk.Misc, context: Context, record: FieldRecord) -> Control:
    variable = TextVar(master=master)
    choice = Choice(master, context.theme, variable, record.choices)
    if is_explained(record):
        choice.open_instead = lambda: choose_from_list(context, record, variable.set)
    binding = ChoiceBinding(context.form, record, variable, choice.set_choices)
    return Control(choice, binding, choice.focus_ring, _ignore)


def is_explained(record: FieldRecord) -> bool:
    """Return whether each choice of a field has a sentence about it, so that they are chosen in the window."""
    return bool(record.variants) or (bool(record.choice_help) and set(record.choices) <= set(record.choice_help))


def _every(master: tk.Misc, context: Context, record: FieldRecord) -> Control:
    frame = Panel(master, context.theme, "card")
    amount, unit = TextVar(master=frame), TextVar(master=frame)
    entry = Entry(frame, context.theme, amount, width=64)
    choice = Choice(frame, context.theme, unit, _UNIT_LABELS, width=112)

    def enable_number(*_names: str) -> None:
        entry.set_enabled(unit.get() != "never")

    unit.trace_add("write", enable_number)
    binding = EveryBinding(context.form, record, amount, unit)
    entry.pack(side="left")
    choice.pack(side="left", padx=(6, 0))
    return Control(frame, binding, entry.tk_entry.focus_set, entry.mark_invalid, is_wide=False)


_MAKERS: Mapping[str, Maker] = {
    "int": _number,
    "float": _number,
    "int_list": _number,
    "resolutions": _number,
    "text": _line,
    "bool": _switch,
    "choice": _choice,
    "section": _choice,
    "every": _every,
    "list": _files,
}


class Row:
    """A field in a card: its widgets, their visibility and the note below them."""

    def __init__(self, master: Panel, context: Context, record: FieldRecord, line: int, *, is_inner: bool) -> None:
        theme = context.theme
        self.record = record
        self.is_shown = False
        self.is_explained = False  # whether the first sentence of the help stands below the value
        self._context = context
        self._line = line * 2
        self._indent = theme.px(_INDENT) if is_inner else 0  # the fields of a variant are below its choice
        self._mark = Panel(master, theme, "card", width=theme.px(3))
        self._label = Text(master, theme, record.label, colour="label", on="card", wrap_px=150)
        self.control = make_control(master, context, record)
        self._reason: WrappedText | None = None
        self._master = master
        self._unwatch = context.form.watch(record.path, self.refresh)
        self._shown_problem: Problem | None = None
        self.refresh()

    @property
    def tip_targets(self) -> tuple[tk.Misc, ...]:
        """The widgets that show the field's tooltip."""
        return (self._label, self.control.frame)

    @property
    def menu_target(self) -> tk.Misc:
        """The widget whose context menu resets the field."""
        return self._label

    def tip(self) -> str:
        """Return the tooltip's text."""
        return tip_of(self._context, self.record)

    def refresh(self) -> None:
        """Mark the row if the value differs from the loaded one or the entry is invalid."""
        form, path = self._context.form, self.record.path
        draft = form.draft(path)
        self._shown_problem = problem = draft.problem if draft else self._context.field_problems.at(path)
        is_error = problem is not None and problem.severity == "error"
        self._mark.recolour("error" if is_error else "accent" if form.is_edited(self.record) else "card")
        self.control.mark_invalid(is_error)
        if note := support_note(form.config, self.record):
            self._show_note(note, "muted")
        elif needs := describe_needs(form.config, self.record) if self.is_shown else "":
            self._show_note(f"No effect now: {needs}.", "muted")  # opened by a link
        elif problem is not None:
            self._show_note(
                problem.message if draft else f"{problem.message} {problem.advice}".strip(), problem.severity
            )
        else:
            self._show_note(explanation(self.record) if self.is_explained else "", "muted")

    def explain(self, is_explained: bool) -> None:
        """Show or hide the explanation; a note about the value takes its place."""
        if is_explained != self.is_explained:
            self.is_explained = is_explained
            self.refresh()

    def refresh_problem(self) -> None:
        """Show the problem that the rules find now."""
        form, path = self._context.form, self.record.path
        if form.draft(path) is None and self._context.field_problems.at(path) != self._shown_problem:
            self.refresh()

    def set_shown(self, is_shown: bool) -> None:
        """Show or hide the row."""
        if is_shown == self.is_shown:
            return
        self.is_shown = is_shown
        if is_shown:
            self._place()
            self.refresh()
        else:
            for widget in (self._mark, self._label, self.control.frame, *([self._reason] if self._reason else [])):
                widget.grid_remove()

    def flash(self) -> None:
        """Highlight the label for a moment."""
        self._label.recolour("accent")
        call_later(self._label, _FLASH_MS, lambda: self._label.recolour("label"))

    def close(self) -> None:
        """Unsubscribe from the model and destroy the widgets."""
        self.leave()
        self.destroy()

    def leave(self) -> None:
        """Unsubscribe from the model; the widgets stay until they are destroyed."""
        self._unwatch()
        self.control.binding.close()

    def destroy(self) -> None:
        """Destroy the widgets."""
        for widget in (self._mark, self._label, self.control.frame, self._reason):
            if widget is not None:
                widget.destroy()

    def _place(self) -> None:
        px = self._context.theme.px
        self._mark.grid(row=self._line, column=0, sticky="ns", pady=px(6), padx=(0, px(9)))
        self._label.grid(row=self._line, column=1, sticky="w", pady=px(4), padx=(self._indent, px(12)))
        sticky = "ew" if self.control.is_wide else "w"
        # Not `frame.grid`: customtkinter's own would scale the distance a second time.
        tk.Grid.grid_configure(self.control.frame, row=self._line, column=2, sticky=sticky, pady=px(4))

    def _show_note(self, text: str, colour: str) -> None:
        """Show a note below the value: why it is invalid, or that it is not supported yet."""
        if not text:
            if self._reason is not None:
                self._reason.grid_remove()
            return
        theme = self._context.theme
        if self._reason is None:
            self._reason = WrappedText(self._master, theme, role="small", colour=colour, on="card")
        self._reason.set_text(text)
        self._reason.recolour(colour)
        if self.is_shown:
            inset = (self._indent, 0)
            self._reason.grid(
                row=self._line + 1, column=1, columnspan=2, sticky="ew", padx=inset, pady=(0, theme.px(6))
            )
