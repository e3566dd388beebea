"""Deleting runs: their contents, the trash of a workspace, and restoring runs from it.

A deleted run is moved to `<workspace>/.trash/`. That takes no time, however large it is, and can be undone until the
trash is emptied.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.system.errors import DarkroomError
from trainer.run_folder.records import size_of
from trainer.run_folder.run_lock import holder_of

TRASH = ".trash"
_PARTS = ("backup", "samples", "save", "tensorboard")


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a run's folder: its bytes and files, and the bytes of each part ("rest" for the others)."""

    run_dir: Path
    size_bytes: int
    num_files: int
    parts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class DeletedRun:
    """A run in the trash, and where it was."""

    was: Path
    place: Path


def contents_of(run_dir: Path) -> Contents:
    """Return the contents of a run's folder, which a deletion would remove."""
    total = size_of(run_dir)
    parts = [(name, size_of(run_dir / name)) for name in _PARTS]
    rest = total - sum(size for _, size in parts)
    num_files = sum(path.is_file() for path in run_dir.rglob("*"))
    return Contents(run_dir, total, num_files, tuple((n, s) for n, s in (*parts, ("rest", rest)) if s > 0))


def delete_run(run_dir: Path) -> DeletedRun:
    """Move a run to the trash of its workspace. Raises DarkroomError if it trains at the moment, and OSError."""
    if holder_of(run_dir) is not None:
        raise DarkroomError(f"The run {run_dir.name} trains at the moment.", advice="Stop it first, then delete it.")
    if run_dir.parent.name != "runs":
        raise DarkroomError(f"{run_dir} is not a run in a workspace.", advice="Delete it in the file manager.")
    trash = run_dir.parent.parent / TRASH
    trash.mkdir(exist_ok=True)
    place = _free_name(trash / run_dir.name)
    run_dir.rename(place)
    return DeletedRun(run_dir, place)


def restore_run(deleted: DeletedRun) -> Path:
    """Move a run back from the trash and return its folder; with another name if its own is in use. Raises OSError."""
    destination = _free_name(deleted.was)
    deleted.place.rename(destination)
    return destination


def has_trash(workspaces: Sequence[Path]) -> bool:
    """Return whether any of some workspaces has deleted runs."""
    return any((workspace / TRASH).is_dir() and any((workspace / TRASH).iterdir()) for workspace in workspaces)


def trash_bytes(workspaces: Sequence[Path]) -> int:
    """Return the size of the deleted runs of some workspaces."""
    return sum(size_of(workspace / TRASH) for workspace in workspaces)


def empty_trash(workspaces: Sequence[Path]) -> None:
    """Remove the deleted runs of some workspaces for good. Raises OSError."""
    for workspace in workspaces:
        if (workspace / TRASH).is_dir():
            shutil.rmtree(workspace / TRASH)


def _free_name(path: Path) -> Path:
    """Return the path, or with a number if it exists."""
    names = (path, *(path.with_name(f"{path.name}-{n}") for n in range(2, 1000)))
    return next(name for name in names if not name.exists())
