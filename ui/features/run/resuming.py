"""The settings of a resumed run, and the names of forks."""

from __future__ import annotations

from modules.config.records import inner_records, top_records
from modules.config.schema import Config
from modules.settings.edit import get_path, replace_value, set_path
from modules.settings.field import FieldRecord, Section
from modules.system.paths import safe_name


def resumed_config(of_run: Config, now: Config) -> Config:
    """Return the run's config with the current values of settings that may change on resume (epochs, samples, ...)."""
    result = of_run
    for path in _changeable_paths(of_run, now):
        result, _ = set_path(result, path, get_path(now, path))
    return result


def _changeable_paths(of_run: Config, now: Config) -> list[str]:
    paths: list[str] = []
    for record in top_records(type(now)).values():
        if record.kind == "map":
            paths += _changeable_inside(record, {**get_path(of_run, record.path), **get_path(now, record.path)})
        elif record.setting.changeable_on_resume:
            paths.append(record.path)
        elif record.kind == "section":
            paths += _changeable_of_variant(record, get_path(of_run, record.path), get_path(now, record.path))
    return paths


def _changeable_of_variant(record: FieldRecord, before: Section, now: Section) -> list[str]:
    """Return the fields of a variant that may change; empty if another variant is chosen now."""
    inner = inner_records(type(now), record.path) if type(now) is type(before) else ()
    return [field.path for field in inner if field.setting.changeable_on_resume]


def _changeable_inside(record: FieldRecord, entries: dict[str, object]) -> list[str]:
    if record.item is None:
        return []
    return [
        field.path
        for name in entries
        for field in inner_records(record.item, f"{record.path}.{name}")
        if field.setting.changeable_on_resume
    ]


def proposed_name(config: Config) -> str:
    """Return the name of the result with the first number that is free: zog-2 for zog."""
    from trainer.run_folder.destination import stem_of, with_free_number  # not needed before the window is drawn

    return stem_of(with_free_number(config).output.destination)


def with_name(config: Config, name: str) -> Config:
    """Return the config with another name of the result, in the same folder and of the same kind."""
    from trainer.run_folder.destination import PATH, with_stem

    clean = safe_name(name) or proposed_name(config)
    return replace_value(config, PATH, with_stem(config.output.destination, clean))
