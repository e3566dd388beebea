"""The places a run writes to: proven writable, apart from each other, and nobody else's file replaced."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from modules.config.schema import Config
from modules.system.paths import from_root
from modules.system.problem import Problem
from trainer.preflight.model import kind_of

_LONGEST_NAME = 230  # bytes; most systems allow 255, and a file has a longer name while it is written
_LEAST_FREE_BYTES = 16 * 2**20  # less holds not even a small LoRA and its log
_FOLDERS = (("general.workspace_dir", "workspace"), ("general.cache_dir", "cache"))


def problems_of_places(config: Config) -> Iterator[Problem]:
    """Yield what is wrong with the folders and the file a run writes to."""
    yield from _folders(config)
    yield from _output(config)
    yield from _one_in_the_other(config)


def _folders(config: Config) -> Iterator[Problem]:
    for (path, _), name in zip(_FOLDERS, (config.general.workspace_dir, config.general.cache_dir), strict=True):
        if not name.strip():
            yield Problem(path, "The folder has no name.", advice="Name one, as workspace/run.")
        elif reason := _why_not_writable(from_root(name)):
            yield Problem(path, f"Nothing can be written to {name}: {reason}.", advice="Choose another folder.")


def _output(config: Config) -> Iterator[Problem]:
    name = config.output.destination
    destination = from_root(name)
    if not name.strip():
        yield Problem("output.destination", "The result has no name.", advice="Name one, as models/lora.safetensors.")
        return
    is_folder = config.training.trains == "full" and config.output.model_format == "diffusers"
    what_is_wrong = _why_no_folder(destination, name) if is_folder else _why_no_file(destination, name)
    if what_is_wrong is not None:
        yield what_is_wrong
    elif reason := _why_not_writable(destination.parent) or _why_no_name(destination):
        yield Problem("output.destination", f"{name} cannot be written: {reason}.", advice="Choose another place.")
    elif kind_of(destination):
        yield _replaced(name, never=config.output.never_replace)


def _replaced(name: str, *, never: bool) -> Problem:
    if not never:
        return Problem("output.destination", f"{name} exists and will be replaced when the run ends well.", "info")
    advice = "Choose another name, or allow files to be replaced."
    return Problem("output.destination", f"{name} exists already, and no file may be replaced.", advice=advice)


def _why_no_file(destination: Path, name: str) -> Problem | None:
    if kind_of(destination) == "folder":
        advice = "Name a file in it, as in folder/lora.safetensors."
        return Problem("output.destination", f"{name} is a folder.", advice=advice)
    if destination.suffix != ".safetensors":
        message = f"{name} does not end in .safetensors, the form the result is written in."
        return Problem("output.destination", message, advice="Give it that ending.")
    return None


def _why_no_folder(destination: Path, name: str) -> Problem | None:
    """Only a former model is replaced: whatever else lies in a folder is somebody's own."""
    if kind_of(destination) == "file" or destination.suffix == ".safetensors":
        message = f"{name} names a file, and a model in diffusers form is a folder."
        return Problem("output.destination", message, advice="Name a folder, or choose the single file as the format.")
    if kind_of(destination) == "folder" and kind_of(destination / "model_index.json") != "file":
        message = f"{name} is a folder that holds no model; it would be replaced."
        return Problem("output.destination", message, advice="Name a new folder in it.")
    return None


def _one_in_the_other(config: Config) -> Iterator[Problem]:
    """Yield what would be swept away with the cache, or learned from as if it were a picture of the user's."""
    named = [(p, label, getattr(config.general, p.split(".")[1])) for p, label in _FOLDERS]
    places = [(p, label, real(name)) for p, label, name in named if name.strip()]
    if len(places) == len(_FOLDERS):
        workspace, cache = places[0][2], places[1][2]
        if is_in(workspace, cache) or is_in(cache, workspace):
            how = "are the same folder" if workspace == cache else "lie one in the other"
            yield Problem(
                "general.cache_dir",
                f"The cache and the workspace {how}: {cache}. Who clears the cache may lose runs.",
                "warning",
                "Give each a folder of its own.",
            )
    if config.output.destination.strip():
        places.append(("output.destination", "result", real(config.output.destination)))
    for index, concept in enumerate(config.concepts):
        if not concept.enabled or not concept.path.strip():
            continue
        folder = real(concept.path)
        for path, label, place in places:
            if is_in(place, folder):
                yield Problem(
                    path,
                    f"The {label} {place} lies in the folder of the concept {concept.name or f'number {index + 1}'}, "
                    "where what is written may be taken for images to learn from.",
                    "warning",
                    "Choose a place outside of the images' folders.",
                )


def real(name: str) -> str:
    """Return a config's path as the absolute one it leads to, links followed; for comparing, whatever is there."""
    try:
        return os.path.normcase(os.path.realpath(from_root(name)))
    except (OSError, ValueError):  # a name that no file can have is told elsewhere
        return os.path.normcase(os.path.normpath(from_root(name)))


def is_in(inner: str, outer: str) -> bool:
    """Return whether one absolute path is another, or below it."""
    return inner == outer or inner.startswith(outer.rstrip(os.sep) + os.sep)


def _why_not_writable(folder: Path) -> str:
    """Return why nothing can be written in a folder that may not exist yet, proven by a write; else nothing."""
    if reason := _why_no_name(folder):
        return reason
    existing = folder
    while kind_of(existing) == "" and existing != existing.parent:
        existing = existing.parent
    if kind_of(existing) != "folder":
        return f"{existing} is not a folder"
    probe = existing / f".darkroom-probe-{uuid.uuid4().hex[:8]}"
    try:
        probe.write_bytes(b"x" * 4096)  # an empty file can still be made on a full disk
        probe.unlink()
        free_bytes = shutil.disk_usage(existing).free
    except OSError as error:
        _remove(probe)
        return error.strerror or str(error)
    if free_bytes < _LEAST_FREE_BYTES:
        return f"the disk is full, with {free_bytes / 2**20:.1f} MiB free"
    return ""


def _remove(probe: Path) -> None:
    """Take away a file that may have been made before the disk was full."""
    try:
        probe.unlink(missing_ok=True)
    except OSError:
        return


def _why_no_name(path: Path) -> str:
    """Return why no file or folder can have this path, or may not be looked at; else nothing."""
    try:
        if any(len(os.fsencode(name)) > _LONGEST_NAME for name in path.parts):
            return "a name in it is too long"
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return error.strerror or str(error)
    except ValueError as error:
        return str(error)
    return ""
