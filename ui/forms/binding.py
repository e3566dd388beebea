"""Tk variables bound to the fields of a form model. Works on `tk.Tcl()` too, so it is tested without a display."""

from __future__ import annotations

import re
import tkinter as tk
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from modules.settings.every import Every
from modules.settings.field import FieldRecord
from modules.system.problem import Problem
from ui.forms.context import Context
from ui.forms.model import FormModel
from ui.forms.records import available_choices, name_of, support_note
from ui.forms.values import display, from_text, number, to_text

Offer = Callable[[Mapping[str, str]], None]


class Binding(Protocol):
    """A connection between variables and a field; closed with its widgets."""

    def close(self) -> None:
        """Unsubscribe from the variables and the model."""


class _Link(ABC):
    """Two-way connection: user edits go to the model, changes of the field go to the variables."""

    def __init__(self, model: FormModel, path: str, variables: tuple[tk.Variable, ...]) -> None:
        self.model = model
        self.path = path
        self._is_refreshing = False
        self._traces = [(v, v.trace_add("write", self._follow_variable)) for v in variables]
        self._unsubscribe = model.watch(path, self.refresh)
        self.refresh()

    def close(self) -> None:
        """Unsubscribe from the variables and the model."""
        self._unsubscribe()
        for variable, trace in self._traces:
            variable.trace_remove("write", trace)

    def refresh(self) -> None:
        """Show the model's value."""
        self._is_refreshing = True
        try:
            self.show()
        finally:
            self._is_refreshing = False

    def _follow_variable(self, *_names: str) -> None:
        # Until a form is rebuilt for another variant or family, which takes some turns, it has rows of fields that are
        # gone: what is typed there goes with them.
        if not self._is_refreshing and self.model.has(self.path):
            self.take()

    @abstractmethod
    def show(self) -> None:
        """Set the variables to the model's value."""

    @abstractmethod
    def take(self) -> None:
        """Pass the variables' value to the model."""


class TextBinding(_Link):
    """A text variable and a field with a typed value: numbers, texts, lists of numbers."""

    def __init__(self, model: FormModel, record: FieldRecord, variable: tk.StringVar) -> None:
        self.record = record
        self.variable = variable
        super().__init__(model, record.path, (variable,))

    def show(self) -> None:
        """Show the value, but keep another spelling of the same value ("1e-4")."""
        draft = self.model.draft(self.path)
        value = self.model.value(self.path)
        typed = self.variable.get()
        text = draft.text if draft else to_text(self.record, value)
        if typed != text and (draft or not _stands_for(self.record, typed, value)):
            self.variable.set(text)

    def take(self) -> None:
        """Pass the typed text to the model."""
        self.model.edit_text(self.path, self.variable.get())

    def tidy(self) -> None:
        """Rewrite the value in the usual form once the user has finished typing."""
        if self.model.draft(self.path) is None:
            self._is_refreshing = True
            self.variable.set(to_text(self.record, self.model.value(self.path)))
            self._is_refreshing = False


class FlagBinding(_Link):
    """A switch and a boolean field."""

    def __init__(self, model: FormModel, record: FieldRecord, variable: tk.BooleanVar) -> None:
        self.variable = variable
        super().__init__(model, record.path, (variable,))

    def show(self) -> None:
        """Show the value."""
        self.variable.set(bool(self.model.value(self.path)))

    def take(self) -> None:
        """Pass the state of the switch to the model."""
        self.model.edit(self.path, self.variable.get())


class ChoiceBinding(_Link):
    """A name variable and a field with choices, or a section with variants.

    `offer` receives the available choices; they depend on the current one.
    """

    def __init__(self, model: FormModel, record: FieldRecord, variable: tk.StringVar, offer: Offer) -> None:
        self.record = record
        self.variable = variable
        self._offer = offer
        super().__init__(model, record.path, (variable,))

    def show(self) -> None:
        """Show the chosen name and the available choices."""
        name = name_of(self.model.value(self.path))
        self._offer(available_choices(self.record, name))
        self.variable.set(name)

    def take(self) -> None:
        """Pass the chosen name to the model; for a section this switches the variant."""
        if self.record.kind == "section":
            self.model.choose_variant(self.path, self.variable.get())
        else:
            self.model.edit(self.path, self.variable.get())


class EveryBinding(_Link):
    """A number and a unit, and a field of the kind `Every`."""

    def __init__(self, model: FormModel, record: FieldRecord, number_text: tk.StringVar, unit: tk.StringVar) -> None:
        self.number_text = number_text
        self.unit = unit
        super().__init__(model, record.path, (number_text, unit))

    def show(self) -> None:
        """Show number and unit; keep another spelling of the same number."""
        value: Any = self.model.value(self.path) or Every()
        draft = self.model.draft(self.path)
        self.unit.set(value.unit)
        if draft is not None:
            if self.number_text.get() != draft.text:
                self.number_text.set(draft.text)
            return
        if _number_or_none(self.number_text.get()) != value.n:
            self.number_text.set(f"{value.n:g}")

    def take(self) -> None:
        """Pass number and unit to the model."""
        text = self.number_text.get()
        try:
            amount = number(text)
        except ValueError as error:
            self.model.reject(self.path, text, Problem(self.path, str(error)))
            return
        self.model.edit(self.path, {"n": amount, "unit": self.unit.get()}, typed=text)


def _stands_for(record: FieldRecord, text: str, value: Any) -> bool:
    """Return whether a text stands for a value, in any spelling."""
    try:
        return bool(from_text(record, text) == value)
    except ValueError:
        return False


def _number_or_none(text: str) -> float | None:
    try:
        return number(text)
    except ValueError:
        return None


_SHORT_HELP = 90  # characters
_END = re.compile(r"(?<!et al)\. ")  # of a sentence
A_STEP = "A step is one optimizer update; with gradient accumulation it takes several batches."


def tip_of(context: Context, record: FieldRecord) -> str:
    """Return a field's tooltip: help, range, default, loaded value, and the reason for an invalid entry."""
    setting = record.setting
    draft = context.form.draft(record.path)
    lines = [record.label, setting.help]
    if record.allowed and not record.choices:
        lines.append(f"Range: {record.allowed}{f' {setting.unit}' if setting.unit else ''}")
    lines.append(f"Default: {display(record, record.default)}")
    if context.form.was_loaded(record.path) and context.form.differs(record.path):
        lines.append(f"As loaded: {display(record, context.form.loaded_value(record.path))}")
    if record.kind == "every" or setting.unit == "steps":
        lines.append(A_STEP)
    if setting.changeable_on_resume:
        lines.append("Can be changed when a run is resumed.")
    lines.append(support_note(context.form.config, record))
    if draft is not None:
        lines.append(f"Invalid: {draft.problem.message}")
    return "\n".join(line for line in lines if line)


def first_sentence(text: str) -> str:
    """Return the first sentence of a text."""
    end = _END.search(text)
    return text if end is None else text[: end.start() + 1]


def explanation(record: FieldRecord) -> str:
    """Return the first sentence of a field's help; all of it if it is short."""
    text = record.setting.help
    return text if len(text) <= _SHORT_HELP else first_sentence(text)


def choose_from_list(context: Context, record: FieldRecord, choose: Callable[[str], object]) -> None:
    """Open the window of a field's choices, which is imported when it is opened first.

    Not for a field that is gone and still shown, until its form is rebuilt.
    """
    from ui.forms.chooser import Chooser

    if context.form.has(record.path):
        Chooser(context, record, choose)
