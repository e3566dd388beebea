"""The config that the window edits, and all editing that needs no Tk.

The config is frozen and always valid. An invalid entry is kept next to it as a draft, with the reason. A valid edit
replaces the config, can be undone, and notifies the watchers of the changed values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

from modules.config.records import record_at, top_records
from modules.config.schema import Config
from modules.settings.edit import choose_variant, has_path, replace_value, set_path
from modules.settings.field import FieldRecord
from modules.system.problem import Problem
from ui.forms.records import value_at
from ui.forms.values import from_text, why_out_of_range
from ui.loop.signal import Signal, Unsubscribe, new_key, notify

_MAX_UNDO = 200


@dataclass(frozen=True, slots=True)
class Source:
    """Where the config was loaded from or last saved to."""

    name: str = "Untitled"
    path: Path | None = None
    kind: Literal["built_in", "preset", "file", "none"] = "none"


class Draft(NamedTuple):
    """An invalid entry: the typed text and the reason."""

    text: str
    problem: Problem


@dataclass(frozen=True, slots=True)
class Document:
    """A config, its loaded or last saved version, and its source."""

    config: Config
    baseline: Config
    source: Source

    @property
    def is_changed(self) -> bool:
        """Whether the config differs from the loaded or last saved one."""
        return self.config != self.baseline and plain(self.config) != plain(self.baseline)


class FormModel:
    """The edited config, its loaded version, the invalid entries and the undo history."""

    def __init__(
        self,
        config: Config | None = None,
        *,
        baseline: Config | None = None,
        source: Source | None = None,
        drafts: Mapping[str, Draft] | None = None,
    ) -> None:
        config = config or Config()
        self._state = Document(config, baseline or config, source or Source())
        self._drafts = dict(drafts or {})
        self._undo: list[Document] = []
        self._redo: list[Document] = []
        self._typed_path = ""
        self._watchers: dict[int, tuple[str, Callable[[], None]]] = {}
        self.changed: Signal[[]] = Signal()  # anything at all
        self.loaded: Signal[[]] = Signal()  # another document
        self.awaited = ""
        """The name of the config that is being read and will replace this one, which must not be started any more."""

    # -- state

    @property
    def document(self) -> Document:
        """Config, loaded config and source as one frozen record."""
        return self._state

    @property
    def config(self) -> Config:
        """The current config: valid, without the invalid entries."""
        return self._state.config

    @property
    def source(self) -> Source:
        """The preset or file of the config."""
        return self._state.source

    @property
    def baseline(self) -> Config:
        """The config as it was loaded or last saved."""
        return self._state.baseline

    @property
    def drafts(self) -> dict[str, Draft]:
        """The invalid entries, by path."""
        return dict(self._drafts)

    @property
    def is_changed(self) -> bool:
        """Whether the config differs from the loaded or last saved one."""
        return bool(self._drafts) or self._state.is_changed

    def value(self, path: str) -> Any:
        """Return the value at a path; None for a field that the chosen variant does not have."""
        return value_at(self.config, path)

    def has(self, path: str) -> bool:
        """Return whether the config has a field; one of another variant or family does not exist in it."""
        return has_path(self.config, path)

    def loaded_value(self, path: str) -> Any:
        """Return the value at a path as it was loaded; None without one."""
        return value_at(self.baseline, path)

    def record(self, path: str) -> FieldRecord | None:
        """Return the record of the field at a path."""
        return record_at(self.config, path)

    def draft(self, path: str) -> Draft | None:
        """Return the invalid entry at a path, if there is one."""
        return self._drafts.get(path)

    def differs(self, path: str) -> bool:
        """Return whether the value at a path differs from the loaded one."""
        return bool(value_at(self.config, path) != value_at(self.baseline, path))

    def is_edited(self, record: FieldRecord) -> bool:
        """Return whether a field differs from the loaded config, or from its default if that has another variant."""
        if self.was_loaded(record.path):
            return self.differs(record.path)
        return bool(value_at(self.config, record.path) != record.default)

    def was_loaded(self, path: str) -> bool:
        """Return whether the loaded config has the field: its variant is then the chosen one."""
        holder = path.rpartition(".")[0]
        return type(value_at(self.config, holder)) is type(value_at(self.baseline, holder))

    def problems(self) -> list[Problem]:
        """Return one error per invalid entry."""
        return [draft.problem for draft in self._drafts.values()]

    # -- editing

    def edit(self, path: str, value: Any, *, typed: str | None = None) -> Problem | None:
        """Set the value at a path. An invalid value changes nothing; the problem is returned.

        `typed` is the text that the user typed for it. Consecutive typing in one field is one undo step; every other
        edit is its own step.
        """
        config, problems = set_path(self.config, path, value)
        if problems:
            return self.reject(path, _as_text(value) if typed is None else typed, problems[0])
        self._forget_drafts(path)
        self._replace(replace(self._state, config=config), {path}, typed_into="" if typed is None else path)
        return None

    def edit_text(self, path: str, text: str) -> Problem | None:
        """Set the value at a path from typed text; invalid text is kept as a draft."""
        record = self.record(path)
        assert record is not None, path
        try:
            value = from_text(record, text)
        except ValueError as error:
            return self.reject(path, text, Problem(path, str(error)))
        config, problems = set_path(self.config, path, value)
        if problems:
            reason = why_out_of_range(record, value)
            return self.reject(path, text, Problem(path, reason) if reason else problems[0])
        self._forget_drafts(path)
        self._replace(replace(self._state, config=config), {path}, typed_into=path)
        return None

    def append(self, path: str, entries: Sequence[BaseModel]) -> None:
        """Append entries to a list. They are not validated again: for a thousand that would stall the window."""
        config = replace_value(self.config, path, (*self.value(path), *entries))
        self._replace(replace(self._state, config=config), {path})

    def reject(self, path: str, text: str, problem: Problem) -> Problem:
        """Keep an invalid entry next to the config; return the problem."""
        self._drafts[path] = Draft(text, problem)
        self._announce(self._state, {path})
        return problem

    def choose_variant(self, path: str, name: str) -> Problem | None:
        """Switch a section with variants to another one, with the values it had when it was last chosen."""
        config, problems = choose_variant(self.config, path, name)
        if problems:
            return self.reject(path, name, problems[0])
        self._forget_drafts(path)
        self._replace(replace(self._state, config=config), {path})
        return None

    def reset(self, path: str, *, to: Literal["baseline", "default"]) -> None:
        """Reset the value at a path to the loaded one or the default."""
        record = self.record(path)
        if to == "baseline":
            self.edit(path, value_at(self.baseline, path))
        elif record is not None:
            self.edit(path, record.default)

    def load(self, config: Config, source: Source, *, baseline: Config | None = None) -> None:
        """Load another config; what differs from `baseline`, if given, is unsaved. This can be undone like any edit."""
        touched = set(self._drafts)
        self._drafts.clear()
        self._replace(Document(config, baseline or config, source), touched)
        self.loaded()

    def restore(self, document: Document, drafts: Mapping[str, Draft]) -> None:
        """Load the state of another form, with its unsaved changes and invalid entries. This can be undone."""
        touched = {*self._drafts, *drafts}
        self._drafts = dict(drafts)
        self._replace(document, touched)
        self.loaded()

    def replace(self, config: Config) -> None:
        """Replace the config as one edit of the current document."""
        touched = set(self._drafts)
        self._drafts.clear()
        self._replace(replace(self._state, config=config), touched)

    def mark_saved(self, source: Source) -> None:
        """Record that the current config was saved; undoing earlier edits then differs from the saved one."""
        self._move_to(Document(self.config, self.config, source))

    def rename_source(self, source: Source) -> None:
        """Record that the preset or file of the config has another name; what is unsaved stays unsaved."""
        self._move_to(Document(self.config, self.baseline, source))

    def _move_to(self, document: Document) -> None:
        """Replace the source and the baseline, also in the states of the same document that undo returns to."""
        old, self._state = self._state, document

        def move(state: Document) -> Document:
            is_of_same_document = (state.source, state.baseline) == (old.source, old.baseline)
            return replace(state, source=document.source, baseline=document.baseline) if is_of_same_document else state

        self._undo = [move(s) for s in self._undo]
        self._redo = [move(s) for s in self._redo]
        self._announce(old)

    def undo(self) -> bool:
        """Undo one edit (typing in one field counts as one); return whether there was one."""
        return self._travel(self._undo, self._redo)

    def redo(self) -> bool:
        """Redo one edit; return whether there was one."""
        return self._travel(self._redo, self._undo)

    # -- watching

    def watch(self, path: str, callback: Callable[[], None]) -> Unsubscribe:
        """Call back whenever the value, the draft or the loaded value at a path changes."""
        key = new_key()
        self._watchers[key] = (path, callback)

        def unsubscribe() -> None:
            self._watchers.pop(key, None)

        return unsubscribe

    def forget_watchers_since(self, key: int) -> None:
        """Remove the watchers that were added after `new_key` returned this key."""
        for newer in [k for k in self._watchers if k > key]:
            del self._watchers[newer]

    # -- internals

    def _replace(self, state: Document, touched: Iterable[str], *, typed_into: str = "") -> None:
        if state == self._state:
            self._announce(self._state, touched)
            return
        if not typed_into or typed_into != self._typed_path:
            self._undo = [*self._undo[-_MAX_UNDO:], self._state]
        self._redo.clear()
        self._typed_path = typed_into
        before, self._state = self._state, state
        self._announce(before, touched)

    def _travel(self, source: list[Document], destination: list[Document]) -> bool:
        if not source:
            return False
        destination.append(self._state)
        before, self._state = self._state, source.pop()
        touched = set(self._drafts)
        self._drafts.clear()
        self._typed_path = ""
        self._announce(before, touched)
        return True

    def _forget_drafts(self, path: str) -> None:
        """Drop the draft at a path and those inside it: a replaced list or variant has new fields."""
        for key in [k for k in self._drafts if k == path or k.startswith(path + ".")]:
            del self._drafts[key]

    def _announce(self, before: Document, touched: Iterable[str] = ()) -> None:
        touched = frozenset(touched)
        for key, (path, callback) in list(self._watchers.items()):
            if key in self._watchers and (path in touched or self._is_other(before, path)):
                notify(callback)
        self.changed()

    def _is_other(self, before: Document, path: str) -> bool:
        now = self._state
        return bool(
            value_at(before.config, path) != value_at(now.config, path)
            or value_at(before.baseline, path) != value_at(now.baseline, path)
        )


def plain(config: Config) -> Config:
    """Return the config without parts at their defaults and without remembered variants."""
    updates: dict[str, Any] = {"remembered": {}}
    for path, record in top_records(type(config)).items():
        if record.kind == "map" and record.item is not None and "." not in path:
            defaults = {key.name: key.defaults for key in config.map_keys(path)}
            entries = value_at(config, path).items()
            updates[path] = {name: entry for name, entry in entries if entry != record.item(**defaults.get(name, {}))}
    return config.model_copy(update=updates)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)
