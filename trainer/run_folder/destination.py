"""The destination of a run's result: it replaces no file of another run or program unless the user agreed.

A destination that is taken gets a number (lora-2), when the run starts and again when it writes. The run's folder
records what the settings named, what was chosen, and which file a person let it replace, so that a resumed run writes
to the same place.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any

from modules.config.schema import Config
from modules.formats.headers import UnreadableFileError, read_header
from modules.formats.metadata import FOLDED_KEY
from modules.settings.edit import replace_value
from modules.system.atomic import write_text
from modules.system.paths import from_root
from trainer.events import ModelSaved
from trainer.run_folder.event_log import EVENTS_FILE, read_events
from trainer.run_folder.result import RESULTS_FILE, embeddings_folder, results_of

PATH = "output.destination"
DESTINATION_FILE = "destination.json"
HOW_TO_REPLACE = "To replace it, choose that when you start, or add --overwrite."
"""The advice for a run whose destination is taken, here or on another machine."""
_SUFFIXES = (".safetensors", ".ckpt", ".pt", ".bin")  # any other dot belongs to the name of a folder
_NUMBER = re.compile(r"-[1-9]\d{0,3}$")
_MAX_WEIGHTS = 20  # of a folder, whose headers are read

Stamp = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class TakenDestination:
    """Files at a destination that the run itself did not write: the name of one, and a free destination with a number.

    `run` is the name of the run in the workspace whose result it is, if any; `is_ours` is whether this program wrote
    it.
    """

    name: str
    free: str
    run: str = ""
    is_ours: bool = True

    @property
    def reason(self) -> str:
        """The sentence about the files that are there."""
        if self.run:
            return f"{self.name} is the result of the run {self.run}."
        if self.is_ours:
            return f"{self.name} exists already; Darkroom wrote it earlier."
        return f"{self.name} exists already, and Darkroom did not write it."

    @property
    def message(self) -> str:
        """The sentences about the files that are there, and where the new result goes."""
        return f"{self.reason} It is kept; the result of this run will be {self.free}."


def taken_by(config: Config, run_dir: Path | None = None) -> TakenDestination | None:
    """Return the files at the destination of a config that must stay; None if a run may write there.

    `run_dir` is the folder of a run that resumes: it may replace what it wrote itself.
    """
    name = config.output.destination
    place = from_root(name)
    if not name.strip() or may_write(place, run_dir):
        return None
    existing = _existing(place)[0]
    shown = name if existing == place else f"{_folder_of(name)}{existing.name}"
    run = _run_of(place, from_root(config.general.workspace_dir)) if existing == place else ""
    return TakenDestination(
        shown, with_free_number(config, run_dir).output.destination, run, is_ours=bool(run) or _is_ours(existing)
    )


def may_write(destination: Path, run_dir: Path | None = None) -> bool:
    """Return whether a run may write its result: nothing is there, or its earlier result, or files it may replace."""
    if not is_taken(destination):
        return True
    if run_dir is None:
        return False
    return _read_note(run_dir).replaces == _stamp(destination) or _is_own(destination, run_dir)


def is_taken(destination: Path) -> bool:
    """Return whether a file or folder is at a destination, or at one of the places next to it that a result writes."""
    return bool(_existing(destination))


def with_free_number(config: Config, run_dir: Path | None = None) -> Config:
    """Return the config with the first numbered destination at which a run may write: zog-2 for zog."""
    destination = config.output.destination
    first, stem = 2, stem_of(destination)
    if (number := _NUMBER.search(stem)) and is_taken(from_root(with_stem(destination, stem[: number.start()]))):
        first, stem = int(number.group()[1:]) + 1, stem[: number.start()]  # the next of a series, not zog-2-2
    names = (with_stem(destination, f"{stem}-{n}") for n in count(first))
    return replace_value(config, PATH, next(name for name in names if may_write(from_root(name), run_dir)))


def resolved_destination(config: Config, run_dir: Path | None = None) -> Config:
    """Return the config with the destination of its run, which gets a number if it is taken.

    `run_dir` is the folder of a run that resumes.
    """
    if run_dir is not None:
        config = chosen_destination(config, run_dir)
    is_free = config.output.never_replace or taken_by(config, run_dir) is None
    return config if is_free else with_free_number(config, run_dir)


def chosen_destination(config: Config, run_dir: Path) -> Config:
    """Return the config of a run that resumes with the destination it chose, if its settings are still the same."""
    note = _read_note(run_dir)
    return replace_value(config, PATH, note.chosen) if config.output.destination in note.asked else config


def requested_destination(config: Config, run_dir: Path) -> Config:
    """Return the config of a run with the destination that the settings named, not the one with a number."""
    note = _read_note(run_dir)
    is_chosen = bool(note.asked) and config.output.destination == note.chosen
    return replace_value(config, PATH, note.asked[0]) if is_chosen else config


def note_destination(run_dir: Path, *, asked: str, chosen: str) -> None:
    """Record in a run's folder the destination in its settings, and the chosen one, at which it may write.

    Files that are there now may be replaced, but not the result that another run writes in the meantime. Raises
    OSError.
    """
    before = _read_note(run_dir)
    earlier = before.asked if asked in (*before.asked, before.chosen) else ()
    names = list(dict.fromkeys((*earlier, asked)))
    content = {"asked": names, "chosen": chosen, "replaces": _stamp(from_root(chosen))}
    write_text(run_dir / DESTINATION_FILE, json.dumps(content))


def stem_of(destination: str) -> str:
    """Return the name of a destination without its folder and its suffix."""
    name = _name_of(destination)
    return name[: len(name) - len(_suffix_of(name))]


def with_stem(destination: str, stem: str) -> str:
    """Return a destination with another name, in the same folder and with the same suffix."""
    return f"{_folder_of(destination)}{stem}{_suffix_of(_name_of(destination))}"


def _name_of(destination: str) -> str:
    return PurePosixPath(destination.replace("\\", "/")).name


def _folder_of(destination: str) -> str:
    """Return the part of a destination before its name, as it is written."""
    plain = destination.rstrip("/\\")
    return plain[: len(plain) - len(_name_of(destination))]


def _suffix_of(name: str) -> str:
    return next((name[-len(s) :] for s in _SUFFIXES if name.lower().endswith(s)), "")


@dataclass(frozen=True, slots=True)
class _Note:
    """The contents of a run's record of its destination."""

    asked: tuple[str, ...] = ()
    chosen: str = ""
    replaces: Stamp = ()


def _read_note(run_dir: Path) -> _Note:
    try:
        data: Any = json.loads((run_dir / DESTINATION_FILE).read_text(encoding="utf-8"))
        stamp = tuple((str(name), int(size), int(time)) for name, size, time in data["replaces"])
        return _Note(tuple(map(str, data["asked"])), str(data["chosen"]), stamp)
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return _Note()


def _is_own(destination: Path, run_dir: Path) -> bool:
    """Return whether a run wrote the files at a destination: by its record or, for an older version, by its log."""
    results = results_of(run_dir)
    if results:
        return any(r.path == destination.absolute() and r.is_unchanged() for r in results)
    try:
        if destination.stat().st_mtime_ns > (run_dir / EVENTS_FILE).stat().st_mtime_ns:
            return False
    except OSError:
        return False
    saved = (event for event in read_events(run_dir) if isinstance(event, ModelSaved) and event.is_final)
    return any(event.path == str(destination) for event in saved)


def _run_of(destination: Path, workspace: Path) -> str:
    """Return the name of the newest run of a workspace that wrote a result of the same size; empty without one."""
    place = destination.absolute()
    with suppress(OSError, ValueError):
        for record in sorted((workspace / "runs").glob(f"*/{RESULTS_FILE}"), reverse=True):
            for result in results_of(record.parent):
                if result.path == place and all(_size(f.path) == f.size_bytes for f in result.files):
                    return record.parent.name
    return ""


def _is_ours(destination: Path) -> bool:
    """Return whether this program wrote a model, by the metadata in its header."""
    return any(_has_our_metadata(file) for file in _weights(destination))


def _weights(destination: Path) -> Iterator[Path]:
    with suppress(OSError, ValueError):
        if not destination.is_dir():
            yield destination
            return
        files = sorted([*destination.glob("*.safetensors"), *destination.glob("*/*.safetensors")])
        yield from files[:_MAX_WEIGHTS]


def _has_our_metadata(file: Path) -> bool:
    try:
        metadata = read_header(file).metadata
    except (UnreadableFileError, OSError, ValueError):
        return False
    return metadata.get("software") == "Darkroom" or FOLDED_KEY in metadata or "darkroom_config" in metadata


def _existing(destination: Path) -> list[Path]:
    """Return the files at a destination, and at the places of a model's .yaml and of embeddings next to it."""
    sidecar = [destination.with_suffix(".yaml")] if destination.suffix == ".safetensors" else []
    return [path for path in (destination, embeddings_folder(destination), *sidecar) if _exists(path)]


def _exists(path: Path) -> bool:
    try:
        return os.path.lexists(path)
    except ValueError:  # not a valid path
        return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return -1


def _stamp(destination: Path) -> Stamp:
    """Return names, sizes and times of the files at a destination, which differ once something was replaced."""
    stamps = []
    for path in _existing(destination):
        with suppress(OSError):
            status = path.stat() if path.exists() else path.lstat()  # a link without a target
            stamps.append((path.name, status.st_size, status.st_mtime_ns))
    return tuple(stamps)
