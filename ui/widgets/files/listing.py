"""The contents of a folder for the file dialog, and how many images and captions it has.

Both run on background threads: a folder can have tens of thousands of files, or be on a slow network.
"""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from modules.data.listing import SUFFIXES
from modules.system.problem import count

_CAPTION_SUFFIX = ".txt"
_LOOK_EVERY = 500  # entries between two looks at whether the result is still wanted
_SORTED_AT_ONCE = 2_000  # sorting holds the interpreter lock: 40,000 entries would stall the window for 90 ms


def _never() -> bool:
    return False


class Entry(NamedTuple):
    """A file or folder: its folder and name, size, and modification time in seconds since 1970.

    `is_image`: a concept reads it as an image. `order` compares by name, see `natural_order`. All facts are computed
    where a folder is read: the window goes through tens of thousands of them at once.
    """

    folder: str
    name: str
    is_folder: bool
    size_bytes: int = 0
    modified_seconds: float = 0.0
    is_image: bool = False
    order: tuple[tuple[int, int, str], ...] = ()

    @property
    def path(self) -> Path:
        """Its path."""
        return Path(self.folder, self.name)

    @property
    def is_hidden(self) -> bool:
        """Whether its name begins with a dot."""
        return self.name[0] == "."


@dataclass(frozen=True, slots=True)
class Counts:
    """How many images are directly in a folder, and how many of them have a caption file."""

    images: int = 0
    captions: int = 0

    def words(self) -> str:
        """Return "10 images, 9 captions"; empty without images."""
        if not self.images:
            return ""
        return f"{count(self.images, 'image')}, {count(self.captions, 'caption')}"


@dataclass(frozen=True, slots=True)
class Contents:
    """The entries of a folder sorted by name, or the reason why it cannot be listed."""

    folder: Path
    entries: tuple[Entry, ...] = ()
    problem: str = ""
    counts: Counts = Counts()


def read_folder(folder: Path, *, is_cancelled: Callable[[], bool] = _never) -> Contents:
    """Return the contents of a folder; one that cannot be listed is described, not raised."""
    try:
        real = folder.resolve()
        with os.scandir(real) as directory:
            entries: list[Entry] = []
            for number, entry in enumerate(directory):
                if number % _LOOK_EVERY == 0 and is_cancelled():
                    break
                entries.append(_entry(str(real), entry))
    except (OSError, RuntimeError) as error:
        return Contents(folder, problem=_reason(folder, error))
    return Contents(real, tuple(_sort_entries(entries)), counts=counts_of([e.name for e in entries if not e.is_folder]))


def count_images(folder: Path, *, is_cancelled: Callable[[], bool] = _never) -> Counts:
    """Return the images and captions directly in a folder; none for one that cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            names: list[str] = []
            for number, entry in enumerate(entries):
                if number % _LOOK_EVERY == 0 and is_cancelled():
                    break
                names.append(entry.name)
    except OSError:
        return Counts()
    return counts_of(names)


def natural_order(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that compares numbers in names by value: image2 before image10."""
    pieces = (p for p in re.split(r"(\d+)", name.casefold()) if p)
    return tuple((0, int(p), p) if p.isdecimal() else (1, 0, p) for p in pieces)


def counts_of(names: list[str]) -> Counts:
    """Return the counts of a folder with files of these names."""
    parts = [os.path.splitext(n) for n in names if not n.startswith(".")]  # noqa: PTH122 - ten times as fast
    images = [stem for stem, suffix in parts if suffix.lower() in SUFFIXES]
    captions = {stem for stem, suffix in parts if suffix.lower() == _CAPTION_SUFFIX}
    return Counts(len(images), sum(stem in captions for stem in images))


def folder_of(path: Path) -> Path:
    """Return the nearest folder that exists: a path itself, or one above it; the home folder if there is none."""
    return next((p for p in (path, *path.parents) if p.is_dir()), Path.home())


def _sort_entries(entries: Sequence[Entry]) -> list[Entry]:
    """Return entries sorted by name: parts are sorted, then merged."""
    parts = [
        sorted(entries[begin : begin + _SORTED_AT_ONCE], key=attrgetter("order"))
        for begin in range(0, len(entries), _SORTED_AT_ONCE)
    ]
    return list(heapq.merge(*parts, key=attrgetter("order")))


def _entry(folder: str, dir_entry: os.DirEntry[str]) -> Entry:
    name = dir_entry.name
    try:
        status = dir_entry.stat()
        is_folder, size_bytes, seconds = dir_entry.is_dir(), status.st_size, status.st_mtime
    except OSError:  # a link to nothing
        is_folder, size_bytes, seconds = False, 0, 0.0
    is_image = not is_folder and name[name.rfind(".") :].lower() in SUFFIXES
    return Entry(folder, name, is_folder, size_bytes, seconds, is_image, natural_order(name))


def _reason(folder: Path, error: Exception) -> str:
    match error:
        case PermissionError():
            return f"{folder} cannot be opened: you have no permission to read it."
        case FileNotFoundError():
            return f"{folder} does not exist."
        case NotADirectoryError():
            return f"{folder} is not a folder."
        case OSError():
            return f"{folder} cannot be opened: {error.strerror or error}."
        case _:  # a loop of links
            return f"{folder} cannot be opened: {error}."
