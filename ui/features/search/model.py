"""Searching settings by their names, descriptions, options, and the names that other programs have for them; and the
window's commands and pages.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from modules.config.imports.other_names import OtherName
from modules.config.records import describe_needs, describe_variants, inner_records, record_at, top_records
from modules.config.schema import Config
from modules.settings.field import FieldRecord
from ui.features.search.synonyms import ACTION_WORDS, SYNONYMS
from ui.forms.records import Group, available_choices, inline_records, is_out_of_reach, name_of, support_note, value_at
from ui.forms.setting_pages import SETTING_PAGES, TOP_BAR, TOP_BAR_TITLE, PageSpec, groups_on, page_of
from ui.widgets.actions import Action

_NEAREST = 12
_WORD = re.compile(r"[a-z0-9]+")
# The costs of a match; lower is better.
_IN_LABEL, _WITHIN_LABEL, _IN_NAME, _IN_PLACE, _IN_HELP = 0.0, 1.0, 1.5, 1.0, 5.0
_SYNONYM, _CHOICE, _PART, _ENTRY, _HIDDEN, _ADVANCED, _MORE_WORDS = 0.5, 0.6, 1.0, 1.2, 0.7, 0.2, 0.2
_OTHER_VARIANT = 3.0
_NO_EFFECT = 20.0  # a setting of another program that does nothing here comes last
_ALIAS = 0.3
_EXACT_NAME = -4.0
_WHOLE_LABEL = -1.2
_SIMILAR = 0.75  # of two words: a letter or two mistyped


@dataclass(frozen=True, slots=True)
class Match:
    """A found setting: its label, its place, what to open, and a note (what it needs, its name elsewhere).

    A command or a page has the name of its action, and no path.
    """

    path: str
    label: str
    place: str
    target: str = ""  # the path to open, if it is not the setting's path
    note: str = ""
    action: str = ""

    @property
    def opens(self) -> str:
        """The path to open."""
        return self.target or self.path


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The matches, best first, and whether they are only the nearest ones to what was typed."""

    matches: tuple[Match, ...]
    is_nearest: bool = False


@dataclass(frozen=True)
class _Entry:
    """The searched text of a setting or an option, in lower case, and its cost in addition to the cost of the match."""

    match: Match
    label: str
    place: str
    help: str
    names: tuple[OtherName, ...]
    cost: float
    alias: str = ""

    @cached_property
    def words(self) -> frozenset[str]:
        return frozenset(_WORD.findall(f"{self.label} {self.place} {self.alias}"))

    @cached_property
    def key_text(self) -> str:
        return " ".join(name.key.lower().replace("_", " ") for name in self.names)


class Index:
    """The settings of a config and the actions, prepared for a search. `names` are the other programs' keys by path."""

    def __init__(
        self,
        config: Config,
        names: Mapping[str, tuple[OtherName, ...]] | None = None,
        actions: Iterable[Action] = (),
    ) -> None:
        self._entries = [
            *_field_entries(config, names or {}),
            *_list_entries(config),
            *_variant_entries(config),
            *map(_action_entry, actions),
        ]

    def find(self, text: str) -> SearchResult:
        """Return the settings with all words of a text, or else the nearest ones, if any; all for an empty text."""
        words = _WORD.findall(text.lower().replace("_", " "))
        if not words:
            return SearchResult(self._all())
        if matches := self._rank_matches(words, text):
            return SearchResult(matches)
        return SearchResult(self._nearest(words, text), is_nearest=True)

    def _rank_matches(self, words: Sequence[str], text: str) -> tuple[Match, ...]:
        key = text.strip().lower()
        ranked = []
        for order, entry in enumerate(self._entries):
            cost = _cost(entry, words)
            exact = next((n for n in entry.names if n.key.lower() == key), None)
            if exact is not None:
                cost = (cost or 0.0) + _EXACT_NAME
            if cost is not None:
                ranked.append((cost + entry.cost, order, _with_name(entry, words, exact)))
        return tuple(match for _, _, match in sorted(ranked, key=lambda entry: entry[:2]))

    def _nearest(self, words: Sequence[str], text: str) -> tuple[Match, ...]:
        """Return the matches of the most similar known words; without any, of as many of the words as possible."""
        vocabulary = sorted({w for e in self._entries for w in e.words} | SYNONYMS.keys())
        similar = [next(iter(difflib.get_close_matches(w, vocabulary, n=1, cutoff=_SIMILAR)), w) for w in words]
        if similar != list(words) and (matches := self._rank_matches(similar, text)):
            return matches[:_NEAREST]
        partly: dict[Match, float] = {}
        for word in similar:
            for rank, match in enumerate(self._rank_matches([word], word)):
                partly[match] = partly.get(match, 0.0) - 1 + rank / 1000
        best = sorted(partly, key=lambda match: partly[match])[:_NEAREST]
        return tuple(best)

    def _all(self) -> tuple[Match, ...]:
        """Return the settings that apply, then the commands and pages."""
        return tuple(e.match for e in self._entries if e.match.action or not e.match.note)


def _cost(entry: _Entry, words: Sequence[str]) -> float | None:
    """Return how far an entry is from the words; None if it lacks one of them."""
    total = 0.0
    for word in words:
        costs = [_cost_of(entry, word)]
        costs += [_SYNONYM + cost for phrase in SYNONYMS.get(word, ()) if (cost := _cost_of(entry, phrase)) is not None]
        costs += [_SYNONYM + _WHOLE_LABEL for phrase in SYNONYMS.get(word, ()) if phrase == entry.label]
        finite = [cost for cost in costs if cost is not None]
        if not finite:
            return None
        total += min(finite)
    num_more = max(0, len(_WORD.findall(entry.label)) - len(words))
    return total + _MORE_WORDS * num_more


def _cost_of(entry: _Entry, phrase: str) -> float | None:
    """Return the cost of a word, or of a phrase, by where it is found: at the start of a word, or within it."""
    label = f" {entry.label}"
    if f" {phrase}" in label:
        return _IN_LABEL
    if phrase in label:
        return _WITHIN_LABEL
    if f" {phrase}" in f" {entry.alias}":
        return _ALIAS
    if f" {phrase}" in f" {entry.place}":
        return _IN_PLACE
    if phrase in entry.key_text:
        return _IN_NAME
    return _IN_HELP if f" {phrase}" in f" {entry.help}" else None


def _with_name(entry: _Entry, words: Sequence[str], exact: OtherName | None) -> Match:
    """Return the match; with the other program's key, if it was found by that."""
    by_name = exact
    if by_name is None and not all(word in f"{entry.label} {entry.place} {entry.help}" for word in words):
        spaced = ((n, n.key.lower().replace("_", " ")) for n in entry.names)
        by_name = next((n for n, key in spaced if all(word in key for word in words)), None)
    if by_name is None:
        return entry.match
    note = f"{by_name.program}: {by_name.key}"
    return replace(entry.match, note=f"{note}; {entry.match.note}" if entry.match.note else note)


def _field_entries(config: Config, names: Mapping[str, tuple[OtherName, ...]]) -> Iterator[_Entry]:
    """Yield the fields of all pages and of the top bar, and their options."""
    for path in TOP_BAR:
        record = record_at(config, path)
        if record is not None:
            yield from _entries_of(config, record, f"{TOP_BAR_TITLE} › {record.label}", names)
    for page in SETTING_PAGES:
        for group in groups_on(page, config):
            for record in _records(config, group):
                yield from _entries_of(config, record, f"{page.title} › {group.title}", names)


def _entries_of(
    config: Config, record: FieldRecord, place: str, names: Mapping[str, tuple[OtherName, ...]]
) -> Iterator[_Entry]:
    note = describe_needs(config, record)
    without_effect = support_note(config, record) if record.setting.not_yet else ""
    match = Match(record.path, record.label, place, note=_sentence_part(without_effect) or note)
    cost = (_PART if record.path.startswith("parts.") else 0.0) + (_HIDDEN if note else 0.0)
    cost += (_ADVANCED if record.setting.level == "advanced" else 0.0) + (_NO_EFFECT if without_effect else 0.0)
    yield _entry(match, record, names.get(record.path, ()), cost)
    choices = available_choices(record, name_of(value_at(config, record.path))) if record.choices else {}
    for name, text in choices.items():
        choice, about = replace(match, label=f"{record.label}: {text}"), record.choice_help.get(name, "")
        yield _Entry(
            choice, choice.label.lower(), place.lower(), about.lower(), (), cost + _CHOICE, name.replace("_", " ")
        )


def _sentence_part(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:].rstrip(".")


def _action_entry(action: Action) -> _Entry:
    kind = "Page" if action.name.startswith("page_") else "Command"
    label = action.label.strip("…▾ ")
    note = action.shortcut if action.is_enabled() else "not available now"
    place = f"{kind} › {action.help}" if action.help else kind
    match = Match("", label, place, note=note, action=action.name)
    alias = ACTION_WORDS.get(action.name, "")
    return _Entry(match, label.lower(), kind.lower(), action.help.lower(), (), 0.0, alias)


def _list_entries(config: Config) -> Iterator[_Entry]:
    """Yield the fields of list entries (concepts, prompts, reward models): they open in the first entry's editor."""
    for path, record in top_records(type(config)).items():
        page = page_of(type(config), path)
        if record.kind != "list" or record.item is None or page is None:
            continue
        has_entries = bool(value_at(config, path))
        for field in inner_records(record.item, f"{path}.0"):
            if not field.setting.not_yet:
                yield _list_entry(field, page, path, has_entries=has_entries)


def _list_entry(field: FieldRecord, page: PageSpec, path: str, *, has_entries: bool) -> _Entry:
    place = f"{page.title} › each entry" + (f" › {field.setting.group}" if field.setting.group else "")
    note = "" if has_entries else "add an entry first"
    return _entry(Match(field.path, field.label, place, "" if has_entries else path, note), field, (), _ENTRY)


def _variant_entries(config: Config) -> Iterator[_Entry]:
    """Yield the fields that only other variants of a choice have, such as other optimizers."""
    for path, record in top_records(type(config)).items():
        page = page_of(type(config), path)
        if record.kind != "section" or page is None:
            continue
        chosen = name_of(value_at(config, path))
        chosen_paths = {
            f.path for name, kind in record.variants.items() if name == chosen for f in inner_records(kind, path)
        }
        variant_names: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        fields: dict[tuple[str, str], FieldRecord] = {}
        for name, kind in record.variants.items():
            for field in inner_records(kind, path) if name not in record.setting.not_yet_choices else ():
                if field.path not in chosen_paths and not field.setting.not_yet:
                    variant_names[field.path, field.label].append(name)
                    fields.setdefault((field.path, field.label), field)
        for key, field in fields.items():
            note = describe_variants(record, tuple(variant_names[key]))
            match = Match(field.path, field.label, f"{page.title} › {record.label}", path, note)
            yield _entry(match, field, (), _OTHER_VARIANT)


def _entry(match: Match, record: FieldRecord, names: tuple[OtherName, ...], cost: float) -> _Entry:
    place = f"{match.place} {record.path.replace('.', ' ').replace('_', ' ')}"
    return _Entry(match, match.label.lower(), place.lower(), record.setting.help.lower(), names, cost)


def _records(config: Config, group: Group) -> Iterator[FieldRecord]:
    """Yield the fields of a group, without unsupported ones."""
    for record in group.records:
        inner = inline_records(config, record) if record.kind == "section" else ()
        yield from (r for r in (record, *inner) if not is_out_of_reach(config, r))
