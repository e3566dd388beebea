"""The settings of a resumed run."""

from __future__ import annotations

from modules.config.records import inner_records, top_records
from modules.config.schema import Config
from modules.settings.edit import get_path, set_path
from modules.settings.field import FieldRecord, Section


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
