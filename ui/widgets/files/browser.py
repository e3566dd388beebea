"""The state of the file dialog: which folder is open, which entries are shown and selected, what an answer means.

It reads no disk beyond a look at a typed path: contents come from `ui.widgets.files.listing`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from modules.system.problem import count
from ui.loop.interaction import FileKind
from ui.widgets.files.listing import Contents, Counts, Entry

Purpose = Literal["open", "save", "folder", "folders"]
SortKey = Literal["name", "size", "modified"]
Select = Literal["only", "toggle", "extend"]
ALL_FILES: FileKind = ("All files", "*")


@dataclass(frozen=True, slots=True)
class Enter:
    """The answer so far is a folder to open."""

    folder: Path


@dataclass(frozen=True, slots=True)
class DialogAnswer:
    """The dialog is answered. `replaces` is set if a file of that name exists and must be asked about."""

    paths: tuple[Path, ...]
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class Rejection:
    """An answer that cannot be used, and why."""

    reason: str


Outcome = Enter | DialogAnswer | Rejection


class Browser:
    """Call `show` with the contents of a folder; the view draws `shown` and calls the other methods."""

    def __init__(self, purpose: Purpose, folder: Path, kinds: Sequence[FileKind] = (), *, name: str = "") -> None:
        self.purpose = purpose
        self.folder = folder
        self.kinds: tuple[FileKind, ...] = (*(k for k in kinds if k[1] != "*"), ALL_FILES)
        self.kind = 0
        self.name = name
        self.show_hidden = False
        self.sort: SortKey = "name"
        self.is_descending = False
        self.problem = ""
        self.shown: tuple[Entry, ...] = ()
        self.cursor = -1
        self.selected: frozenset[int] = frozenset()
        self.counts = Counts()
        self._entries: tuple[Entry, ...] = ()
        self._anchor = -1
        self._num_files, self._num_others = 0, 0  # shown, and of other kinds

    # -- contents

    def show(self, contents: Contents, *, focus: Path | None = None) -> None:
        """Show the contents of a folder, with the cursor on `focus`. One with a problem leaves the list as it is."""
        self.problem = contents.problem
        if contents.problem:
            return
        self.folder = contents.folder
        self._entries = contents.entries
        self.counts = contents.counts
        self._filter(focus)

    def set_filter(self, *, kind: int | None = None, show_hidden: bool | None = None) -> None:
        """Change which files are shown."""
        self.kind = self.kind if kind is None else kind
        self.show_hidden = self.show_hidden if show_hidden is None else show_hidden
        self._filter(self._at_cursor())

    def sort_by(self, key: SortKey) -> None:
        """Sort by a column; the same column again reverses the order."""
        self.is_descending = not self.is_descending if key == self.sort else key == "modified"
        self.sort = key
        self._filter(self._at_cursor())

    @property
    def shows_mostly_images(self) -> bool:
        """Whether at least half of the files shown are images: then thumbnails serve better than rows."""
        files = [e for e in self.shown if not e.is_folder]
        return bool(files) and 2 * sum(e.is_image for e in files) >= len(files)

    # -- selection

    def select(self, index: int, how: Select = "only") -> None:
        """Select the entry at an index, or toggle it, or extend the selection to it."""
        if not 0 <= index < len(self.shown):
            self.selected = frozenset()
            return
        self.cursor = index
        if not self._can_choose(self.shown[index]):
            self.selected = frozenset() if how == "only" else self.selected
            return
        if self.purpose != "folders" or how == "only":
            self._anchor = index
            self.selected = frozenset({index})
        elif how == "toggle":
            self._anchor = index
            self.selected = self.selected ^ {index}
        else:
            anchor = self._anchor if self._anchor >= 0 else index
            between = range(min(anchor, index), max(anchor, index) + 1)
            self.selected = frozenset(i for i in between if self._can_choose(self.shown[i]))
        if self.purpose == "save" and not self.shown[index].is_folder:
            self.name = self.shown[index].name

    def select_all(self) -> None:
        """Select every folder, where several can be chosen."""
        if self.purpose == "folders":
            self.selected = frozenset(i for i, e in enumerate(self.shown) if e.is_folder)

    def move(self, by: int, *, extend: bool = False) -> None:
        """Move the cursor, within the list."""
        if self.shown:
            start = self.cursor if self.cursor >= 0 else -1 if by > 0 else 0
            self.select(min(len(self.shown) - 1, max(0, start + by)), "extend" if extend else "only")

    def find(self, text: str) -> bool:
        """Move to the next entry whose name begins with a text, or else contains it; return whether there is one."""
        wanted = text.casefold()
        order = [*range(max(0, self.cursor), len(self.shown)), *range(max(0, self.cursor))]
        names = [e.name.casefold() for e in self.shown]
        for matches in (lambda name: name.startswith(wanted), lambda name: wanted in name):
            index = next((i for i in order if matches(names[i])), None)
            if index is not None:
                self.select(index)
                return True
        return False

    # -- answers

    def activate(self) -> Outcome | None:
        """Return the meaning of a double click or Return on the entry at the cursor."""
        if not 0 <= self.cursor < len(self.shown):
            return None
        entry = self.shown[self.cursor]
        if entry.is_folder:
            return Enter(entry.path)
        return self.answer() if self._can_choose(entry) else None

    def answer(self) -> Outcome:
        """Return the meaning of the dialog's button with the current selection and name."""
        chosen = tuple(self.shown[i].path for i in sorted(self.selected))
        match self.purpose:
            case "folder" | "folders":
                if self.problem:
                    return Rejection(self.problem)
                return DialogAnswer(chosen or (self.folder,))
            case "open":
                if not chosen:
                    return Rejection("Select a file.")
                return Enter(chosen[0]) if self._is_folder(chosen[0]) else DialogAnswer(chosen[:1])
            case "save":
                return self._save_answer()

    def typed(self, text: str) -> Outcome:
        """Return the meaning of a path that was typed: a folder is opened, a file is the answer."""
        path = self.path_of(text)
        if path.is_dir():
            return Enter(path)
        match self.purpose:
            case "open":
                return DialogAnswer((path,)) if path.exists() else Rejection(f"{path} does not exist.")
            case "save":
                if not path.parent.is_dir():
                    return Rejection(f"The folder {path.parent} does not exist.")
                return DialogAnswer((path,), replaces=path.exists())
            case _:
                return Rejection(f"{path} is not a folder." if path.exists() else f"{path} does not exist.")

    def path_of(self, text: str) -> Path:
        """Return a typed path as an absolute one: "~" is the home folder, a relative one begins at the open folder."""
        plain = text.strip().strip('"') or "."
        try:
            path = Path(plain).expanduser()
        except RuntimeError:  # "~name" without such a user
            path = Path(plain)
        return Path(os.path.normpath(self.folder / path))

    # -- words

    def status(self) -> tuple[str, str]:
        """Return the line below the list, and its colour token."""
        if self.problem:
            return self.problem, "error"
        if self.purpose == "folders" and len(self.selected) > 1:
            return f"{count(len(self.selected), 'folder')} selected", "text"
        here = self.counts.words()
        if here:
            return f"{here} here", "text"
        files, others = self._num_files, self._num_others
        words = f"{count(len(self.shown) - files, 'folder')}, {count(files, 'file')}"
        return f"{words}; {count(others, 'file')} of other kinds" if others else words, "muted"

    # -- helpers

    def _save_answer(self) -> Outcome:
        name = self.name.strip()
        if not name:
            return Rejection("Type a name for the file.")
        path = self.path_of(name)
        if path.is_dir():
            return Enter(path)
        suffix = next(iter(self._suffixes_of_kind()), "")
        if suffix and path.suffix.lower() not in self._suffixes_of_kind():
            path = path.with_name(path.name + suffix)
        if not path.parent.is_dir():
            return Rejection(f"The folder {path.parent} does not exist.")
        return DialogAnswer((path,), replaces=path.exists())

    def _suffixes_of_kind(self) -> list[str]:
        patterns = self.kinds[self.kind][1].split()
        return [p[1:].lower() for p in patterns if re.fullmatch(r"\*(\.\w+)+", p)]

    def _filter(self, focus: Path | None) -> None:
        kept = [e for e in self._entries if self._is_listed(e)]
        if self.sort != "name":  # they come sorted by name
            kept.sort(key=_SORT_KEYS[self.sort])
        if self.is_descending:
            kept.reverse()
        self.shown = (*(e for e in kept if e.is_folder), *(e for e in kept if not e.is_folder))
        self._num_files = sum(not e.is_folder for e in kept)
        num_hidden = 0 if self.show_hidden else sum(e.is_hidden for e in self._entries if not e.is_folder)
        self._num_others = sum(not e.is_folder for e in self._entries) - num_hidden - self._num_files
        self.selected = frozenset()
        self._anchor = -1
        self.cursor = -1
        index = None
        if focus is not None and focus.parent == self.folder:
            index = next((i for i, e in enumerate(self.shown) if e.name == focus.name), None)
        if index is not None:
            self.select(index)

    def _is_listed(self, entry: Entry) -> bool:
        if entry.is_hidden and not self.show_hidden:
            return False
        return entry.is_folder or self._is_shown_kind(entry)

    def _is_shown_kind(self, entry: Entry) -> bool:
        if self.purpose in ("folder", "folders"):
            return entry.is_image
        pattern = self.kinds[self.kind][1]
        return pattern == "*" or any(fnmatch(entry.name.lower(), p) for p in pattern.lower().split())

    def _can_choose(self, entry: Entry) -> bool:
        """Folders can be selected everywhere; files only where one is asked for."""
        return entry.is_folder or self.purpose in ("open", "save")

    def _is_folder(self, path: Path) -> bool:
        return any(e.path == path and e.is_folder for e in self.shown)

    def _at_cursor(self) -> Path | None:
        return self.shown[self.cursor].path if 0 <= self.cursor < len(self.shown) else None


def completions(text: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names that continue the last part of a typed path; hidden ones only after a dot."""
    last = re.split(r"[/\\]", text)[-1]
    wanted = last.casefold()
    matches = (n for n in names if n.casefold().startswith(wanted) and (last.startswith(".") or not n.startswith(".")))
    return tuple(sorted(matches, key=str.casefold))


def common_start(names: Sequence[str]) -> str:
    """Return the longest beginning that all names share, compared without case, as the first writes it."""
    if not names:
        return ""
    shared = os.path.commonprefix([n.casefold() for n in names])  # noqa: RUF071 - of names, not of paths
    return names[0][: len(shared)]


_SORT_KEYS: Mapping[SortKey, Callable[[Entry], Any]] = {
    "size": attrgetter("size_bytes"),  # stable: equal ones stay sorted by name
    "modified": attrgetter("modified_seconds"),
}
