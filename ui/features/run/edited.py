"""Settings that were edited since a run started and are not part of it. No Tk."""

from __future__ import annotations

from collections.abc import Sequence

from modules.system.problem import count
from ui.forms.changes import Change

_MAX_NAMED = 4


def edited_words(changes: Sequence[Change]) -> str:
    """Return which settings differ from those of the run, as a text; empty if none do."""
    if not changes:
        return ""
    names = [change.place.rpartition("›")[2].strip() for change in changes[:_MAX_NAMED]]
    more = f" and {len(changes) - _MAX_NAMED:,} more" if len(changes) > _MAX_NAMED else ""
    verb = "It applies" if len(changes) == 1 else "They apply"
    return f"Changed since Start: {count(len(changes), 'setting')} ({', '.join(names)}{more}). {verb} to the next run."
