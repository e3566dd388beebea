"""Searching settings by words of their label or help. No Tk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from modules.config.schema import Config
from modules.settings.edit import get_path
from modules.settings.field import FieldRecord
from ui.forms.records import Group, records_beside
from ui.forms.visibility import is_out_of_reach, name_of, offered
from ui.pages.catalogue import PAGES, groups_on

_NO_MATCH = 9


@dataclass(frozen=True, slots=True)
class Match:
    """A found field and its place as text."""

    path: str
    label: str
    place: str


def find_fields(config: Config, text: str) -> list[Match]:
    """Return the fields with all words of `text` in label, heading, page, path or help; best match first.

    Choices with the words in their label are found, too.
    """
    words = text.lower().split()
    fields = list(_all_fields(config))
    ranked = [(_rank(record, match, words), match) for record, match in fields]
    ranked += [found for record, match in fields for found in _choices(config, record, match, words)]
    return [match for rank, match in sorted(ranked, key=lambda entry: entry[0]) if rank < _NO_MATCH]


def _choices(config: Config, record: FieldRecord, match: Match, words: list[str]) -> Iterator[tuple[int, Match]]:
    """Yield the choices of a field whose labels have words of the search, with their rank: "Optimizer: Prodigy"."""
    label = record.label.lower()
    if all(word in label for word in words):
        return  # the field itself is found
    for text in offered(record, name_of(get_path(config, record.path))).values() if record.choices else ():
        lower = text.lower()
        if all(word in f"{label} {lower}" for word in words):
            is_start = lower.startswith(tuple(words))
            yield (0 if is_start else 1), Match(record.path, f"{record.label}: {text}", match.place)


def _rank(record: FieldRecord, match: Match, words: list[str]) -> int:
    """Return the rank of a field; lower is better."""
    label = record.label.lower()
    everything = f"{label} {match.place.lower()} {record.path} {record.setting.help.lower()}"
    if not all(word in everything for word in words):
        return _NO_MATCH
    if all(word in label for word in words):
        return 0 if label.startswith(words[0] if words else "") else 1
    return 2 if all(word in f"{label} {match.place.lower()}" for word in words) else 3


def _all_fields(config: Config) -> Iterator[tuple[FieldRecord, Match]]:
    for page in PAGES:
        for group in groups_on(page, config):
            for record in _records(config, group):
                yield record, Match(record.path, record.label, f"{page.title} › {group.title}")


def _records(config: Config, group: Group) -> Iterator[FieldRecord]:
    """Yield the fields of a group, without unsupported ones."""
    for record in group.records:
        inner = records_beside(config, record) if record.kind == "section" else ()
        yield from (r for r in (record, *inner) if not is_out_of_reach(config, r))
