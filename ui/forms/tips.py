"""The texts about a field: its tooltip, and the explanation below it where a page has room."""

from __future__ import annotations

import re

from modules.settings.field import FieldRecord
from ui.forms.context import Context
from ui.forms.values import display
from ui.forms.visibility import not_yet_words

_SHORT_HELP = 90  # characters
_END = re.compile(r"(?<!et al)\. ")  # of a sentence
_A_STEP = "A step is one optimizer update; with gradient accumulation it takes several batches."


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
        lines.append(_A_STEP)
    if setting.changeable_on_resume:
        lines.append("Can be changed when a run is resumed.")
    lines.append(not_yet_words(context.form.config, record))
    if draft is not None:
        lines.append(f"Invalid: {draft.problem.message}")
    return "\n".join(line for line in lines if line)


def explanation(record: FieldRecord) -> str:
    """Return the first sentence of a field's help; all of it if it is short."""
    text = record.setting.help
    end = _END.search(text)
    return text if end is None or len(text) <= _SHORT_HELP else text[: end.start() + 1]
