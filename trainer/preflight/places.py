"""The places a run writes to: proven writable, and nobody else's file replaced."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from modules.config.problem import Problem
from modules.config.schema import Config
from modules.system.paths import from_root
from trainer.model_check import kind_of

_LONGEST_NAME = 230  # bytes; most systems allow 255, and a file has a longer name while it is written


def problems_of_folders(config: Config) -> Iterator[Problem]:
    for path, name in (
        ("general.workspace_dir", config.general.workspace_dir),
        ("general.cache_dir", config.general.cache_dir),
    ):
        if not name.strip():
            yield Problem(path, "The folder has no name.", advice="Name one, as workspace/run.")
        elif reason := _why_not_writable(from_root(name)):
            yield Problem(path, f"Nothing can be written to {name}: {reason}.", advice="Choose another folder.")


def problems_of_output(config: Config) -> Iterator[Problem]:
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
        yield Problem("output.destination", f"{name} exists and will be replaced when the run ends well.", "info")


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
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return ""


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
