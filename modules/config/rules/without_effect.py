"""Settings that were changed and do nothing with the others: the check reports them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from modules.config.reach import is_reachable, needs_words
from modules.config.schema import Config
from modules.config.unused import why_unused
from modules.settings.edit import get_path
from modules.settings.field import FieldRecord
from modules.settings.walk import present_records
from modules.system.problem import Problem

_MAX_NAMED = 6


def settings_without_effect(config: Config) -> Iterator[Problem]:
    """Yield one problem for each reason why changed settings have no effect: what they need, or what ignores them.

    A warning if the training target or method ignores them; a note if another setting would switch them on.
    """
    idle: dict[str, list[FieldRecord]] = defaultdict(list)
    for record in present_records(config):
        if get_path(config, record.path) != record.default and not is_reachable(config, record):
            idle[needs_words(config, record)].append(record)
    for needs, records in idle.items():
        labels = list(dict.fromkeys(r.label for r in records))
        rest = f" and {len(labels) - _MAX_NAMED} more" if len(labels) > _MAX_NAMED else ""
        verb = "has" if len(labels) == 1 else "have"
        is_ignored = any(why_unused(config, r.path) for r in records)
        yield Problem(
            records[0].path,
            f"{', '.join(labels[:_MAX_NAMED])}{rest} {verb} no effect ({needs}).",
            "warning" if is_ignored else "info",
            "Reset what has no effect, or choose another training method." if is_ignored else "",
        )
