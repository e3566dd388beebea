"""The differences between the edited config and a reference: a preset, the loaded file, the defaults."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any, NamedTuple

from modules.config.codec import pack_lists
from modules.config.compare import differing_paths
from modules.config.records import record_at, top_records
from modules.config.schema import Config
from modules.settings.field import FieldRecord
from modules.system.problem import Problem, count, shorten
from ui.forms.findings import locate
from ui.forms.model import Document
from ui.forms.records import name_of, nearest_field, value_at
from ui.forms.setting_pages import SETTING_PAGES
from ui.forms.values import display

_MAX_CHARS = 60
_PAGE_ORDER = {page.key: number for number, page in enumerate(SETTING_PAGES)}


class Change(NamedTuple):
    """A field that differs: its path, its place and both values as text."""

    path: str
    place: str
    before: str
    now: str

    @property
    def label(self) -> str:
        """The name of the field alone."""
        return self.place.rpartition(" › ")[2]


def changes(config: Config, reference: Config, *, with_new_lists: bool = True) -> tuple[Change, ...]:
    """Return the fields of `config` that differ from `reference`, in page order.

    A section with variants is one entry if another variant is chosen. Lists that the reference leaves empty
    (the concepts of a preset) count only `with_new_lists`.
    """
    ranked = []
    for path in dict.fromkeys(_field_of(config, reference, p) for p in differing_paths(config, reference)):
        record = record_at(config, path)
        before = value_at(reference, path)
        if record is None or record.kind == "map" or (record.kind == "list" and not before and not with_new_lists):
            continue
        change = _change(config, record, before)
        if change is not None:
            ranked.append((_rank(config, path), change))
    return tuple(change for _, change in sorted(ranked, key=lambda entry: entry[0]))


def edits_since_start(config: Config, of_run: Config) -> tuple[Change, ...]:
    """Return the fields that differ from a run's. Lists are compared by their entries, not by their files."""
    return changes(pack_lists(config), pack_lists(of_run))


def describe_unsaved(document: Document, drafts: Sized) -> str:
    """Return the name of a config and how many of its fields are not saved: "#demo with 2 unsaved changes"."""
    number = len(changes(document.config, document.baseline)) + len(drafts)
    return f"{document.source.name} with {count(max(1, number), 'unsaved change')}"


def _change(config: Config, record: FieldRecord, before: Any) -> Change | None:
    now = value_at(config, record.path)
    if (now is None and not record.optional) or now == before:
        return None
    texts = (_text_of(record, before), _text_of(record, now))
    if texts[0] == texts[1]:
        texts = (texts[0], f"{texts[1]}, edited")
    return Change(record.path, locate(Problem(record.path, ""), config).place, *texts)


def value_text(config: Config, path: str) -> str:
    """Return the value of a field as text; a dash if the config has no such field."""
    record = record_at(config, path)
    return _text_of(record, value_at(config, path)) if record is not None else "–"


def _text_of(record: FieldRecord, value: Any) -> str:
    if value is None and not record.optional:
        return "–"
    return shorten(" ".join(display(record, value).split()), max_chars=_MAX_CHARS)


def _field_of(config: Config, reference: Config, path: str) -> str:
    """Return the field that contains a path: the choice itself, if another variant is chosen."""
    for holder in _variants(config):
        is_inside = path == holder or path.startswith(f"{holder}.")
        if is_inside and name_of(value_at(config, holder)) != name_of(value_at(reference, holder)):
            return holder
    return nearest_field(config, path)


def _variants(config: Config) -> Iterator[str]:
    return (path for path, record in top_records(type(config)).items() if record.kind == "section")


def _rank(config: Config, path: str) -> tuple[int, int, str]:
    """Return the sort key of a field: its page, then the order of declaration."""
    page = locate(Problem(path, ""), config).page
    paths = list(top_records(type(config)))
    head = next((i for i, top in enumerate(paths) if path == top or path.startswith(f"{top}.")), len(paths))
    return _PAGE_ORDER.get(page, len(_PAGE_ORDER)), head, path
