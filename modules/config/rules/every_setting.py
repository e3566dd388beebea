"""Rules for all settings: settings that are not supported yet, that have no effect, or that name files.

A setting that is not supported yet is an error, never silently ignored. A config may be from a stranger, so names in it
that become names of files must lead to no other folder.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache

from modules.config.records import describe_needs, is_reachable, why_unused
from modules.config.schema import Config
from modules.families.registry import family_labels
from modules.settings.edit import get_path, has_path, live_records, present_records
from modules.settings.field import FieldRecord
from modules.system.paths import reason_if_no_name
from modules.system.problem import Problem, agree, list_first, quote

# Where imports keep the model type of another program's file that no family here has.
_MODEL_TYPES = (("onetrainer", "model_type"), ("ai_toolkit", "model", "unsupported"), ("kohya", "model_type"))


def unsupported_settings(config: Config) -> Iterator[Problem]:
    """Yield problems for unsupported settings and choices, and for the model types of other families."""
    yield from settings_not_yet_supported(config)
    for steps in _MODEL_TYPES:
        model_type: object = config.unknown
        for step in steps:
            model_type = model_type.get(step) if isinstance(model_type, Mapping) else None
        if model_type:
            labels = ", ".join(family_labels().values())
            yield Problem(
                "model.family",
                f"The file is for a model of the type {model_type}, which is not supported.",
                advice=f"Start a new config with a base model of a supported family: {labels}.",
            )


_MAX_NAMED = 6


def settings_without_effect(config: Config) -> Iterator[Problem]:
    """Yield one problem for each reason why changed settings have no effect: what they need, or what ignores them.

    A warning if the training target or method ignores them; a note if another setting would switch them on. In a
    config of OneTrainer its defaults are left out: it has all of them, and the user has not changed them.
    """
    idle: dict[str, list[FieldRecord]] = defaultdict(list)
    for record in present_records(config):
        value = get_path(config, record.path)
        if value == record.default or is_reachable(config, record) or (record.name == "train" and value is False):
            continue  # a part that is not to be trained is not
        if not _is_onetrainers(config, record, value):
            idle[describe_needs(config, record)].append(record)
    for needs, records in idle.items():
        labels = list(dict.fromkeys(r.label for r in records))
        is_ignored = any(why_unused(config, r.path) for r in records)
        yield Problem(
            records[0].path,
            f"{list_first(labels, _MAX_NAMED)} {agree(len(labels), 'has')} no effect ({needs}).",
            "warning" if is_ignored else "info",
            "Reset what has no effect, or choose another training method." if is_ignored else "",
        )


def _is_onetrainers(config: Config, record: FieldRecord, value: object) -> bool:
    """Return whether a config is of OneTrainer and a value its default; of variants, the settings inside count."""
    is_theirs = "onetrainer" in config.unknown
    theirs = _defaults_of_onetrainer(config.model.family.name) if is_theirs else None
    if theirs is None or not has_path(theirs, record.path):
        return False
    default = get_path(theirs, record.path)
    return value == default or (record.kind == "section" and isinstance(default, type(value)))


@cache
def _defaults_of_onetrainer(family: str) -> Config | None:
    """Return the config that OneTrainer's defaults are for a family; None for a family that it does not train."""
    from modules.config.codec import decode
    from modules.config.migrations.onetrainer_11.model import MODEL_TYPES
    from modules.config.migrations.onetrainer_keys import NEWEST

    model_type = next((theirs for theirs, (ours, _) in MODEL_TYPES.items() if ours == family), None)
    return None if model_type is None else decode({"__version": NEWEST, "model_type": model_type}).config


def file_names(config: Config) -> Iterator[Problem]:
    """Yield the names of files that are paths, or that some system does not accept."""
    prefix = config.backup.save_prefix
    if prefix and (reason := reason_if_no_name(prefix)):
        yield Problem(
            "backup.save_prefix",
            f"The prefix of saved files, {quote(prefix)}, is not valid in a file name: {reason}.",
            advice="Use letters, digits, spaces and . _ - only, or leave it empty. Saves are in the run's own folder.",
        )


# Settings that the engine does not support yet: reported before a run, never silently ignored.


def settings_not_yet_supported(config: Config) -> Iterator[Problem]:
    """Yield an error for each unsupported setting that would change the training, and a warning for each that merely
    has no effect.
    """
    for record in live_records(config):
        value = get_path(config, record.path)
        name = str(getattr(value, "name", value)) if record.kind in ("section", "choice") else ""
        if name in record.setting.not_yet_choices:
            yield _refused_choice(record, name)
        elif record.setting.not_yet and value != record.default:
            yield _refusal(record, value) if record.setting.not_yet == "refused" else _without_effect(record, value)


def _refused_choice(record: FieldRecord, name: str) -> Problem:
    done = [label for key, label in record.choices.items() if key not in record.setting.not_yet_choices]
    label = record.choices.get(name, name)
    return Problem(
        record.path,
        f"{record.label}: {label} is not supported yet.",
        advice=f"Choose {', '.join(done[:-1])} or {done[-1]}." if len(done) > 1 else f"Choose {done[0]}.",
    )


def _refusal(record: FieldRecord, value: object) -> Problem:
    return Problem(
        record.path,
        f"{record.label}: {_plain(record, value)} is not supported yet.",
        advice=f"Set it back to {_plain(record, record.default)}.",
    )


def _without_effect(record: FieldRecord, value: object) -> Problem:
    return Problem(
        record.path,
        f"{record.label}: {_plain(record, value)} has no effect yet.",
        "warning",
        f"The training is the same without it. Set it back to {_plain(record, record.default)} to remove this warning.",
    )


def _plain(record: FieldRecord, value: object) -> str:
    """Return a value as the window displays it."""
    match value:
        case bool():
            return "on" if value else "off"
        case None | "" | ():
            return record.setting.empty_means or "empty"
        case str():
            return record.choices.get(value, quote(value))
        case tuple():
            return f"a list of {len(value)}"
        case float():
            return f"{value:g}"
        case _:
            return str(value)
