"""Rules for all settings alike: ones that are not supported yet, ones without an effect, and names of files.

A setting that is not supported yet is an error, never silently ignored. A config may come from anybody, so names in it
that become names of files must lead to no other folder.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from modules.config.reach import is_reachable, needs_words
from modules.config.schema import Config
from modules.config.support import unsupported
from modules.config.unused import why_unused
from modules.settings.edit import get_path
from modules.settings.field import FieldRecord
from modules.settings.walk import present_records
from modules.system.paths import reason_if_no_name
from modules.system.problem import Problem, shown


def unsupported_settings(config: Config) -> Iterator[Problem]:
    """Yield problems for unsupported settings and choices, and for the model types of other families."""
    yield from unsupported(config)
    rest = config.unknown.get("onetrainer")
    model_type = rest.get("model_type") if isinstance(rest, dict) else None
    if model_type:
        yield Problem(
            "model.family",
            f"The file is for a model of the type {model_type}, which is not supported yet.",
            advice="Start a new config with a base model of a supported family.",
        )


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


def file_names(config: Config) -> Iterator[Problem]:
    """Yield the names of files that are paths, or that some system does not accept."""
    prefix = config.backup.save_prefix
    if prefix and (reason := reason_if_no_name(prefix)):
        yield Problem(
            "backup.save_prefix",
            f"The prefix of saved files, {shown(prefix)}, is not valid in a file name: {reason}.",
            advice="Use letters, digits, spaces and . _ - only, or leave it empty. Saves are in the run's own folder.",
        )
