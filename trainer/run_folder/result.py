"""The results of a run on disk: copies of saved models, and the record of the files that were written.

The record has each file with its size and SHA-256. It proves that a run is complete, and which files belong to it: any
other file may be at the same place.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from modules.system.atomic import copy_file, copy_folder, write_text
from trainer.run_folder.run_dir import stored_path

RESULTS_FILE = "results.json"


def copy_model(source: Path, destination: Path) -> None:
    """Copy a saved model atomically: a folder, or a file with its .yaml. If it raises OSError, an existing one stays.

    The .yaml is what some programs read a checkpoint's prediction type from. Embeddings next to it are copied, too.
    """
    for file in sorted(embeddings_folder(source).glob("*.safetensors")):
        copy_file(file, embeddings_folder(destination) / file.name)
    if source.is_dir():
        copy_folder(source, destination)
        return
    copy_file(source, destination)
    if source.with_suffix(".yaml").is_file():
        copy_file(source.with_suffix(".yaml"), destination.with_suffix(".yaml"))


def link_model(source: Path, destination: Path) -> None:
    """Give a saved model a second place, with all files that `copy_model` copies, without using more disk space.

    Both places share their files, so the model must never be changed in place, only replaced as a whole. If the file
    system does not support that, the files are copied. Raises OSError.
    """
    for file in model_files(source):
        if file.is_relative_to(source):
            place = destination / file.relative_to(source)
        elif file.parent == embeddings_folder(source):
            place = embeddings_folder(destination) / file.name
        else:
            place = destination.with_suffix(file.suffix)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(file, place)
        except OSError:
            shutil.copyfile(file, place)


def use_as_result(
    source: Path, destination: Path, *, run_dir: Path, is_kept: bool, step: int | None = None
) -> Path | None:
    """Copy a saved model to the place of the result; return where the model that was there is kept, None without one.

    If it `is_kept`, it is copied first, to the run's "save" folder as "<name>-last", and under a further number if that
    name is taken. `step` is the step of the model, which is recorded. Raises OSError; the result is then unchanged.
    """
    kept = None
    if destination.exists() and is_kept:
        kept = _free_name(run_dir / "save", f"{destination.stem}-last", destination.suffix)
        copy_model(destination, kept)
    copy_model(source, destination)
    with suppress(OSError):  # the model is in its place; a resumed run would only write the result once more
        record_again(run_dir, destination, model_files(destination), model_step=step)
    return kept


def model_files(path: Path) -> list[Path]:
    """Return the files of a saved model: it or those in its folder, its .yaml, and the embeddings next to it."""
    main = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    sidecar = path.with_suffix(".yaml")
    sidecars = [sidecar] if not path.is_dir() and sidecar.is_file() else []
    return [*main, *sidecars, *sorted(embeddings_folder(path).glob("*.safetensors"))]


def embeddings_folder(result: Path) -> Path:
    """Return the folder of the embeddings next to a result, as OneTrainer names it."""
    stem = result.stem if result.suffix == ".safetensors" else result.name
    return result.with_name(f"{stem}_embeddings")


def _free_name(folder: Path, stem: str, suffix: str) -> Path:
    number = 1
    while (path := folder / f"{stem}{f'-{number}' if number > 1 else ''}{suffix}").exists():
        number += 1
    return path


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file as it was written."""

    path: Path
    size_bytes: int
    sha256: str

    def is_unchanged(self) -> bool:
        """Return whether the file is still there with the same content. It is read, unless its size has changed."""
        try:
            return self.path.stat().st_size == self.size_bytes and sha256_of(self.path) == self.sha256
        except (OSError, ValueError):  # not a valid path
            return False


@dataclass(frozen=True, slots=True)
class WrittenResult:
    """A result of a run: its file or folder, the step after which the run ended, and all files that belong to it.

    `destination` is where it was to be written: `path`, unless that could not be written or belonged to another run.
    `is_abandoned`: the run was resumed from an earlier step since, so this is the result of a branch that it abandoned.
    `model_step` is the step of the model in it, if the user has chosen an earlier one since.
    """

    path: Path
    step: int
    files: tuple[WrittenFile, ...]
    destination: Path
    is_abandoned: bool = False
    model_step: int | None = None

    def is_unchanged(self) -> bool:
        """Return whether all files are still there with the same content."""
        return bool(self.files) and all(file.is_unchanged() for file in self.files)


def record_result(
    run_dir: Path,
    path: Path,
    files: Sequence[Path],
    *,
    step: int,
    destination: Path | None = None,
    model_step: int | None = None,
) -> WrittenResult:
    """Record a result that a run has just written after a step: its path, and all files that belong to it.

    `destination` is where it was to be written, if not there. It replaces the record of an earlier result at the same
    path. Raises OSError.
    """
    written = tuple(WrittenFile(f.absolute(), f.stat().st_size, sha256_of(f)) for f in dict.fromkeys(files))
    place = (destination or path).absolute()
    result = WrittenResult(path.absolute(), step, written, place, model_step=model_step)
    _write(run_dir, [*(r for r in results_of(run_dir) if r.path != result.path), result])
    return result


def record_again(run_dir: Path, path: Path, files: Sequence[Path], *, model_step: int | None = None) -> None:
    """Record the present files at the path of a recorded result; does nothing for any other path. Raises OSError."""
    before = next((r for r in results_of(run_dir) if r.path == path.absolute()), None)
    if before is not None:
        record_result(run_dir, path, files, step=before.step, destination=before.destination, model_step=model_step)


def results_of(run_dir: Path) -> list[WrittenResult]:
    """Return the results that a run wrote, the newest last; empty without a readable record."""
    try:
        data = json.loads((run_dir / RESULTS_FILE).read_text(encoding="utf-8"))
        return [_result(entry, run_dir) for entry in data["results"]]
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return []


def abandon_results(run_dir: Path, *, after_step: int) -> None:
    """Mark the results of later steps as abandoned: the run resumes from a backup of `after_step`. Raises OSError."""
    results = results_of(run_dir)
    marked = [replace(r, is_abandoned=True) if r.step > after_step else r for r in results]
    if marked != results:
        _write(run_dir, marked)


def _write(run_dir: Path, results: Sequence[WrittenResult]) -> None:
    entries = [
        {
            "path": stored_path(str(result.path), run_dir),
            "destination": stored_path(str(result.destination), run_dir),
            "step": result.step,
            "is_abandoned": result.is_abandoned,
            **({} if result.model_step is None else {"model_step": result.model_step}),
            "files": [
                {"path": stored_path(str(f.path), run_dir), "bytes": f.size_bytes, "sha256": f.sha256}
                for f in result.files
            ],
        }
        for result in results
    ]
    write_text(run_dir / RESULTS_FILE, json.dumps({"results": entries}, indent=1))


def _result(entry: dict[str, Any], run_dir: Path) -> WrittenResult:
    folder = run_dir.absolute()
    files = tuple(WrittenFile(folder / str(f["path"]), int(f["bytes"]), str(f["sha256"])) for f in entry["files"])
    path, destination = (folder / str(entry[name]) for name in ("path", "destination"))
    model_step = entry.get("model_step")
    return WrittenResult(
        path,
        int(entry["step"]),
        files,
        destination,
        bool(entry["is_abandoned"]),
        None if model_step is None else int(model_step),
    )


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal. Raises OSError."""
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
