"""The results that a run wrote: where, after which step, and each file with its size and SHA-256. Torch-free.

The record proves that a run is complete, and which files belong to it: any other file may be at the same place.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from modules.system.atomic import write_text

RESULTS_FILE = "results.json"


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file as it was written."""

    path: Path
    size_bytes: int
    sha256: str

    def is_unchanged(self) -> bool:
        """Return whether the file is still there with the same content. It is read, unless its size has changed."""
        try:
            return self.path.stat().st_size == self.size_bytes and _sha256(self.path) == self.sha256
        except (OSError, ValueError):  # not a valid path
            return False


@dataclass(frozen=True, slots=True)
class WrittenResult:
    """A result of a run: its file or folder, the step after which the run ended, and all files that belong to it.

    `destination` is where it was to be written: `path`, unless that could not be written or belonged to another run.
    `is_abandoned`: the run was resumed from an earlier step since, so this is the result of a branch that it abandoned.
    """

    path: Path
    step: int
    files: tuple[WrittenFile, ...]
    destination: Path
    is_abandoned: bool = False

    def is_unchanged(self) -> bool:
        """Return whether all files are still there with the same content."""
        return bool(self.files) and all(file.is_unchanged() for file in self.files)


def record_result(
    run_dir: Path, path: Path, files: Sequence[Path], *, step: int, destination: Path | None = None
) -> WrittenResult:
    """Record a result that a run has just written after a step: its path, and all files that belong to it.

    `destination` is where it was to be written, if not there. It replaces the record of an earlier result at the same
    path. Raises OSError.
    """
    written = tuple(WrittenFile(f.absolute(), f.stat().st_size, _sha256(f)) for f in dict.fromkeys(files))
    result = WrittenResult(path.absolute(), step, written, (destination or path).absolute())
    _write(run_dir, [*(r for r in results_of(run_dir) if r.path != result.path), result])
    return result


def record_again(run_dir: Path, path: Path, files: Sequence[Path]) -> None:
    """Record what is now at the path of a recorded result; nothing for another path. Raises OSError."""
    before = next((r for r in results_of(run_dir) if r.path == path.absolute()), None)
    if before is not None:
        record_result(run_dir, path, files, step=before.step, destination=before.destination)


def results_of(run_dir: Path) -> list[WrittenResult]:
    """Return the results that a run wrote, the newest last; none where there is no record that can be read."""
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


def has_written(run_dir: Path, file: Path) -> bool:
    """Return whether a file, as it is now, belongs to a result that a run wrote."""
    place = file.absolute()
    return any(f.path == place and f.is_unchanged() for result in results_of(run_dir) for f in result.files)


def _write(run_dir: Path, results: Sequence[WrittenResult]) -> None:
    entries = [
        {
            "path": _stored(result.path, run_dir),
            "destination": _stored(result.destination, run_dir),
            "step": result.step,
            "is_abandoned": result.is_abandoned,
            "files": [
                {"path": _stored(f.path, run_dir), "bytes": f.size_bytes, "sha256": f.sha256} for f in result.files
            ],
        }
        for result in results
    ]
    write_text(run_dir / RESULTS_FILE, json.dumps({"results": entries}, indent=1))


def _stored(path: Path, run_dir: Path) -> str:
    """Return a path for the record: relative if it is in the run's folder, which may be moved."""
    folder = run_dir.absolute()
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


def _result(entry: dict[str, Any], run_dir: Path) -> WrittenResult:
    folder = run_dir.absolute()
    files = tuple(WrittenFile(folder / str(f["path"]), int(f["bytes"]), str(f["sha256"])) for f in entry["files"])
    path, destination = (folder / str(entry[name]) for name in ("path", "destination"))
    return WrittenResult(path, int(entry["step"]), files, destination, bool(entry["is_abandoned"]))


def _sha256(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
