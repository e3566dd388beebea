"""The folders and the file a run writes to: writable, separate from each other, and replacing no unrelated file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from modules.config.schema import Config
from modules.data.cache.entry_files import entry_files
from modules.families.kinds.identify import identify
from modules.formats.repository import index_file
from modules.settings.field import FieldRecord, Section, records_of
from modules.system.file_errors import is_disk_full
from modules.system.leftovers import temporary_path
from modules.system.paths import from_root, reason_if_of_other_system
from modules.system.problem import Problem
from trainer.preflight.model_files import kind_of
from trainer.run_folder.destination import TakenDestination, chosen_destination, is_taken, taken_by

_MAX_NAME_BYTES = 230  # most systems allow 255, and a file has a longer name while it is written
_MIN_FREE_BYTES = 16 * 2**20  # less is not enough for a small LoRA and its log
_FULL = "the disk is full"
_CACHE = "general.cache_dir"
_FOLDERS = (("general.workspace_dir", "workspace"), (_CACHE, "cache"))


def problems_of_places(
    config: Config, *, own_run: Path | None = None, replaces: bool = False, tries_writing: bool = True
) -> Iterator[Problem]:
    """Yield the problems of the folders and the file a run writes to.

    `own_run` is the folder of the run if it resumes: it replaces its own result. With `replaces` the user agreed to
    replace what is at the destination. With `tries_writing` each folder is tested by a write; otherwise its permissions
    are read.
    """
    yield from _folders(config, tries_writing=tries_writing)
    if (problem := unusable_output(config, tries_writing=tries_writing)) is not None:
        yield problem
    elif is_taken(from_root(config.output.destination)):
        if own_run is not None:
            config = chosen_destination(config, own_run)
        yield _existing(config, taken_by(config, own_run), replaces=replaces)
    yield from _one_in_the_other(config)


def _folders(config: Config, *, tries_writing: bool) -> Iterator[Problem]:
    for (path, _), name in zip(_FOLDERS, (config.general.workspace_dir, config.general.cache_dir), strict=True):
        if not name.strip():
            yield Problem(path, "No folder is set.", advice="Choose one, such as workspace/run.")
        elif reason := reason_if_of_other_system(name) or _why_not_writable(
            from_root(name), tries_writing=tries_writing
        ):
            if path == _CACHE and not reason.startswith(_FULL) and _has_entries(from_root(name)):
                message = f"The folder {name} is not writable: {reason}. Its entries are used, and none can be added."
                yield Problem(path, message, "warning", "Choose another folder if images or captions are new.")
                continue
            message, advice = f"The folder {name} is not writable: {reason}.", "Choose another folder."
            yield Problem(path, message, advice=advice, remedy="space" if reason.startswith(_FULL) else "")


def _has_entries(folder: Path) -> bool:
    """Return whether a cache folder has entries, such as one that several machines read from a shared drive."""
    try:
        return any(True for kind in folder.iterdir() for _ in entry_files(kind))
    except OSError:
        return False


def unusable_output(config: Config, *, tries_writing: bool) -> Problem | None:
    """Return why no result can be written to the destination."""
    name = config.output.destination
    destination = from_root(name)
    if not name.strip():
        advice = "Choose one, such as models/lora.safetensors."
        return Problem("output.destination", "No output destination is set.", advice=advice)
    is_folder = config.training.trains in ("full", "vae") and config.output.model_format == "diffusers"
    problem = _not_a_file(destination, name)
    if is_folder:
        problem = _not_a_folder(destination, name, is_vae=config.training.trains == "vae")
    if problem is None:
        problem = _on_an_input(config, destination)
    if problem is not None:
        return problem
    reason = (
        reason_if_of_other_system(name)
        or _why_not_writable(destination.parent, tries_writing=tries_writing)
        or _why_not_valid(destination)
    )
    if not reason:
        return None
    message, remedy = f"{name} cannot be written: {reason}.", "space" if reason.startswith(_FULL) else ""
    return Problem("output.destination", message, advice="Choose another destination.", remedy=remedy)


def _existing(config: Config, taken: TakenDestination | None, *, replaces: bool) -> Problem:
    """Return the problem of a destination at which something exists."""
    path, name = "output.destination", config.output.destination
    if config.output.never_replace:
        advice = "Choose another name, or allow existing files to be replaced."
        message = f"{name} already exists, and the settings do not allow replacing files."
        return Problem(path, message, advice=advice)
    if taken is None:
        return Problem(path, f"{name} is the result of this run, and will be replaced when the run finishes.", "info")
    if replaces:
        return Problem(path, f"{taken.reason} It will be replaced when the run finishes.", "warning")
    return Problem(path, taken.message, "info" if taken.is_ours else "warning", remedy="destination")


def _on_an_input(config: Config, destination: Path) -> Problem | None:
    """Return the problem of a result that would replace a file or a model which the run reads, or a part of it."""
    place = real(str(destination))
    for record, path, value in inputs_of_config(config):
        source = real(value)
        is_model = record.setting.path_kind == "model" and kind_of(from_root(value)) == "folder"
        if place == source or (is_model and is_in(place, source)):
            return Problem(
                "output.destination",
                f"The result would be written to {config.output.destination}, which the run reads ({path}: {value}).",
                advice="Choose another destination.",
            )
    return None


def inputs_of_config(section: Section, prefix: str = "") -> Iterator[tuple[FieldRecord, str, str]]:
    """Yield the paths that a config names for reading: the record of the field, its dotted path and its value."""
    for record in records_of(type(section)):
        value: object = section
        for name in record.path.split("."):
            value = getattr(value, name)
        path = f"{prefix}{record.path}"
        inner: dict[object, object] = {"": value}
        if isinstance(value, tuple):
            inner = dict(enumerate(value))
        elif isinstance(value, Mapping):
            inner = dict(value)
        for key, item in inner.items():
            if isinstance(item, Section):
                yield from inputs_of_config(item, f"{path}.{key}." if key != "" else f"{path}.")
            elif isinstance(item, str) and item.strip() and record.setting.path_kind not in ("", "save"):
                yield record, path, item.strip()


def _not_a_file(destination: Path, name: str) -> Problem | None:
    if kind_of(destination) == "folder":
        advice = "Enter the name of a file, such as folder/lora.safetensors."
        return Problem("output.destination", f"{name} is a folder.", advice=advice)
    if destination.suffix != ".safetensors":
        message = f"{name} does not end in .safetensors, the format of the result."
        return Problem("output.destination", message, advice="Use the extension .safetensors.")
    return None


def _not_a_folder(destination: Path, name: str, *, is_vae: bool) -> Problem | None:
    """Return why a destination is not valid for a model folder. Only an earlier model is replaced, no other files; by
    a VAE only the folder of a VAE.
    """
    if kind_of(destination) == "file" or destination.suffix == ".safetensors":
        message = f"{name} is a file, but a model in diffusers format is a folder."
        return Problem("output.destination", message, advice="Choose a folder, or the single-file format.")
    if kind_of(destination) != "folder":
        return None
    is_alike = identify(destination).kind == "vae" if is_vae else index_file(destination) is not None
    if not is_alike:
        message = f"{name} is an existing folder without a {'VAE' if is_vae else 'model'}; it would be replaced."
        return Problem("output.destination", message, advice="Choose a new folder in it.")
    return None


def _one_in_the_other(config: Config) -> Iterator[Problem]:
    """Yield paths that could be deleted with the cache, or whose files could be used as training images."""
    named = [(p, label, getattr(config.general, p.split(".")[1])) for p, label in _FOLDERS]
    places = [(p, label, real(name)) for p, label, name in named if name.strip()]
    if len(places) == len(_FOLDERS):
        workspace, cache = places[0][2], places[1][2]
        if is_in(workspace, cache) or is_in(cache, workspace):
            how = "are the same folder" if workspace == cache else "are nested"
            yield Problem(
                _CACHE,
                f"The cache and the workspace {how}: {cache}. Clearing the cache may delete runs.",
                "warning",
                "Choose separate folders.",
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
                    f"The {label} {place} is in the folder of the concept {concept.label_at(index)}. "
                    "Files written there may be used as training images.",
                    "warning",
                    "Choose a folder outside the image folders.",
                )


def real(name: str) -> str:
    """Return a config's path as an absolute path with links resolved, for comparison; it need not exist."""
    try:
        return os.path.normcase(os.path.realpath(from_root(name)))
    except (OSError, ValueError):  # invalid names are reported elsewhere
        return os.path.normcase(os.path.normpath(from_root(name)))


def is_in(inner: str, outer: str) -> bool:
    """Return whether one absolute path equals another, or is below it."""
    return inner == outer or inner.startswith(outer.rstrip(os.sep) + os.sep)


def _why_not_writable(folder: Path, *, tries_writing: bool) -> str:
    """Return why a folder, which may not exist yet, is not writable; empty if it is writable."""
    if reason := _why_not_valid(folder):
        return reason
    existing = folder
    while kind_of(existing) == "" and existing != existing.parent:
        existing = existing.parent
    if kind_of(existing) != "folder":
        return f"{existing} is not a folder"
    if not tries_writing:
        return "" if os.access(existing, os.W_OK) else f"{existing} is read-only"
    probe = temporary_path(existing / "darkroom-probe")  # removed by the next writer there if this is killed
    try:
        probe.write_bytes(b"x" * 4096)  # an empty file can be created even on a full disk
        probe.unlink()
        free_bytes = shutil.disk_usage(existing).free
    except OSError as error:
        _remove(probe)
        return _FULL if is_disk_full(error) else error.strerror or str(error)
    if free_bytes < _MIN_FREE_BYTES:
        return f"{_FULL} ({free_bytes / 1e6:.1f} MB free)"
    return ""


def _remove(probe: Path) -> None:
    """Remove a file that may have been created before the disk was full."""
    try:
        probe.unlink(missing_ok=True)
    except OSError:
        return


def _why_not_valid(path: Path) -> str:
    """Return why a path is not valid or not accessible; empty if it is."""
    try:
        if any(len(os.fsencode(name)) > _MAX_NAME_BYTES for name in path.parts):
            return "a name in it is too long"
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return error.strerror or str(error)
    except ValueError:  # a null byte, or half a surrogate pair
        return "it contains characters that no name may have"
    return ""
