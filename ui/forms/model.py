"""The config that the window edits, and everything about the editing that needs no Tk.

The config itself is frozen and always valid. What a person typed and what does not fit is kept beside it as a draft,
with the reason. An edit that fits replaces the config, can be undone, and tells those who watch the values it changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from modules.config.schema import Config
from modules.settings.edit import choose_variant, get_path, set_path
from modules.settings.field import FieldRecord
from modules.system.problem import Problem
from ui.forms.records import record_at, top_records
from ui.forms.values import from_text, why_out_of_range
from ui.signal import Signal, Unsubscribe, notify

_MAX_UNDO = 200


@dataclass(frozen=True, slots=True)
class Source:
    """Where the config came from, or was last saved to."""

    name: str = "Untitled"
    path: Path | None = None
    kind: Literal["built_in", "preset", "file", "none"] = "none"


@dataclass(frozen=True, slots=True)
class Draft:
    """An entry that does not fit: what was typed, and why it was not taken."""

    text: str
    problem: Problem


@dataclass(frozen=True, slots=True)
class Document:
    """A config, what it was loaded or last saved as, and where from."""

    config: Config
    baseline: Config
    source: Source


class FormModel:
    """The edited config, what it was loaded as, the entries that do not fit, and the way back."""

    def __init__(self, config: Config | None = None, *, baseline: Config | None = None, source: Source | None = None):
        config = config or Config()
        self._state = Document(config, baseline or config, source or Source())
        self._drafts: dict[str, Draft] = {}
        self._undo: list[Document] = []
        self._redo: list[Document] = []
        self._typed_into = ""
        self._watchers: dict[int, tuple[str, Callable[[], None]]] = {}
        self._next_key = 0
        self.changed: Signal[[]] = Signal()  # anything at all
        self.loaded: Signal[[]] = Signal()  # another document

    # -- what there is

    @property
    def document(self) -> Document:
        """Config, loaded config and origin as one frozen record."""
        return self._state

    @property
    def config(self) -> Config:
        """The config as it stands: valid, without the entries that do not fit."""
        return self._state.config

    @property
    def source(self) -> Source:
        """The preset or file the config belongs to."""
        return self._state.source

    @property
    def baseline(self) -> Config:
        """The config as it was loaded or last saved."""
        return self._state.baseline

    @property
    def drafts(self) -> dict[str, Draft]:
        """The entries that do not fit, by path."""
        return dict(self._drafts)

    @property
    def is_changed(self) -> bool:
        """Whether the config differs from what was loaded or last saved."""
        return bool(self._drafts) or (self.config != self.baseline and plain(self.config) != plain(self.baseline))

    def value(self, path: str) -> Any:
        """Return the value at a path; None for a field that the chosen variant does not have."""
        return _get(self.config, path)

    def loaded_value(self, path: str) -> Any:
        """Return the value at a path as it was loaded; None where there was none."""
        return _get(self.baseline, path)

    def record(self, path: str) -> FieldRecord | None:
        """Return the record of the field at a path."""
        return record_at(self.config, path)

    def draft(self, path: str) -> Draft | None:
        """Return the entry at a path that does not fit, if there is one."""
        return self._drafts.get(path)

    def differs(self, path: str) -> bool:
        """Return whether the value at a path is another one than was loaded."""
        return bool(_get(self.config, path) != _get(self.baseline, path))

    def problems(self) -> list[Problem]:
        """Return one error for each entry that does not fit."""
        return [draft.problem for draft in self._drafts.values()]

    # -- editing

    def edit(self, path: str, value: Any, *, is_typing: bool = False) -> Problem | None:
        """Set the value at a path. Where it does not fit, nothing changes and the problem is returned.

        What is typed into one field without a pause elsewhere is one step of undo; anything else is one by itself.
        """
        config, problems = set_path(self.config, path, value)
        if problems:
            return self.reject(path, _typed(value), problems[0])
        self._forget_drafts(path)
        self._replace(replace(self._state, config=config), {path}, typed_into=path if is_typing else "")
        return None

    def edit_text(self, path: str, text: str) -> Problem | None:
        """Set the value at a path from what was typed; text that is no such value is kept as a draft."""
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

    def reject(self, path: str, text: str, problem: Problem) -> Problem:
        """Keep an entry that does not fit beside the config; return the problem."""
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
        """Bring the value at a path back to what was loaded, or to the default."""
        record = self.record(path)
        if to == "baseline":
            self.edit(path, _get(self.baseline, path))
        elif record is not None:
            self.edit(path, record.default)

    def load(self, config: Config, source: Source) -> None:
        """Take another config. This can be undone like any edit."""
        touched = set(self._drafts)
        self._drafts.clear()
        self._replace(Document(config, config, source), touched)
        self.loaded()

    def replace(self, config: Config) -> None:
        """Take another config as one edit of the present document."""
        touched = set(self._drafts)
        self._drafts.clear()
        self._replace(replace(self._state, config=config), touched)

    def mark_saved(self, source: Source) -> None:
        """Note that the config was saved as it stands; undoing edits from before then differs from what was saved."""
        old, self._state = self._state, Document(self.config, self.config, source)

        def moved(state: Document) -> Document:
            is_of_same_document = (state.source, state.baseline) == (old.source, old.baseline)
            return replace(state, source=source, baseline=self.config) if is_of_same_document else state

        self._undo = [moved(s) for s in self._undo]
        self._redo = [moved(s) for s in self._redo]
        self._announce(old)

    def undo(self) -> bool:
        """Go back one edit (typing in one field counts as one); return whether there was one."""
        return self._travel(self._undo, self._redo)

    def redo(self) -> bool:
        """Take back an undo; return whether there was one."""
        return self._travel(self._redo, self._undo)

    # -- watching

    def watch(self, path: str, callback: Callable[[], None]) -> Unsubscribe:
        """Call back whenever the value, the draft or the loaded value at a path becomes another one."""
        self._next_key += 1
        key = self._next_key
        self._watchers[key] = (path, callback)

        def unsubscribe() -> None:
            self._watchers.pop(key, None)

        return unsubscribe

    # -- inner workings

    def _replace(self, state: Document, touched: Iterable[str], *, typed_into: str = "") -> None:
        if state == self._state:
            self._announce(self._state, touched)
            return
        if not typed_into or typed_into != self._typed_into:
            self._undo = [*self._undo[-_MAX_UNDO:], self._state]
        self._redo.clear()
        self._typed_into = typed_into
        before, self._state = self._state, state
        self._announce(before, touched)

    def _travel(self, source: list[Document], destination: list[Document]) -> bool:
        if not source:
            return False
        destination.append(self._state)
        before, self._state = self._state, source.pop()
        touched = set(self._drafts)
        self._drafts.clear()
        self._typed_into = ""
        self._announce(before, touched)
        return True

    def _forget_drafts(self, path: str) -> None:
        """Drop the draft at a path and those inside it: a list or a variant that was replaced has new fields."""
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
            _get(before.config, path) != _get(now.config, path)
            or _get(before.baseline, path) != _get(now.baseline, path)
        )


def plain(config: Config) -> Config:
    """Return the config without what says nothing: a part with all its defaults, and what is merely remembered."""
    updates: dict[str, Any] = {"remembered": {}}
    for path, record in top_records(type(config)).items():
        if record.kind == "map" and record.item is not None and "." not in path:
            blank = record.item()
            updates[path] = {k: v for k, v in _get(config, path).items() if v != blank}
    return config.model_copy(update=updates)


def _get(config: Config, path: str) -> Any:
    try:
        return get_path(config, path)
    except KeyError:
        return None


def _typed(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)
