"""Backups on disk: written completely or not at all, listed, and verified before use.

A run's folder is `<workspace>/runs/<stamp>/`; its backups are `backup/step-00000010/`. Each holds a manifest that
lists every file with its size and SHA-256. An unfinished backup has a temporary name and is never listed.

The newest backup is the one written last. It does not always have the highest step: a run can be resumed from an
older backup, and the later backups are then a branch that the run abandons.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from modules.system.atomic import atomic_folder, flush_folder, remove_folder, write_text
from modules.system.errors import DarkroomError
from modules.system.leftovers import sweep
from modules.system.regular_files import read_json_object
from trainer.run_folder.result import sha256_of
from trainer.run_folder.run_dir import age_of

MANIFEST = "manifest.json"
BEST = "best"
"""The folder of a backup with the best models of its run so far; without them it can still be resumed from."""
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class BackupInfo:
    """A complete backup: its folder, and the step and epoch of the run.

    `created` is the time it was written, to the second. `written_us` orders the backups of a run: microseconds since
    1970, always greater than the previous backup's, even if the clock was set back.
    """

    path: Path
    step: int
    epoch: int
    created: str
    written_us: int = 0

    @property
    def run_dir(self) -> Path:
        """The folder of the run it belongs to."""
        return self.path.parent.parent


def write_backup(run_dir: Path, *, step: int, epoch: int, now: datetime, write: Callable[[Path], None]) -> BackupInfo:
    """Write a backup: `write(folder)` writes the files; then the manifest is written, then the folder is renamed.

    An earlier backup of the same step is replaced once this one is complete.
    """
    destination = run_dir / "backup" / f"step-{step:08d}"
    created = now.isoformat(timespec="seconds")
    sweep(destination.parent, are_writers_gone=True)  # a killed run's: they can be gigabytes; the folder is locked
    written_us = _next_written_us(run_dir, now)
    fresh = destination.with_name(f"{destination.name}-again") if destination.exists() else destination
    with atomic_folder(fresh) as folder:
        write(folder)
        written = {
            file.relative_to(folder).as_posix(): {"bytes": file.stat().st_size, "sha256": sha256_of(file)}
            for file in sorted(folder.rglob("*"))
            if file.is_file()
        }
        best = {name: facts for name, facts in written.items() if name.startswith(f"{BEST}/")}
        files = {name: facts for name, facts in written.items() if name not in best}
        manifest = {"format": _FORMAT, "step": step, "epoch": epoch, "created": created, "written_us": written_us}
        (folder / MANIFEST).write_text(
            json.dumps({**manifest, "files": files, "best": best}, indent=1), encoding="utf-8"
        )
    if fresh != destination:
        try:
            remove_folder(destination)
            fresh.rename(destination)
        except OSError:  # another program has the old folder open: the new one keeps its name
            destination = fresh
        with suppress(OSError):  # both names are of a complete backup
            flush_folder(destination.parent)
    return BackupInfo(destination, step, epoch, created, written_us)


def list_backups(run_dir: Path) -> list[BackupInfo]:
    """Return the complete backups of a run in the order they were written, the newest last.

    Only names and sizes are checked; `verify` compares the hashes.
    """
    try:
        folders = list((run_dir / "backup").glob("step-*"))
    except (OSError, ValueError):  # not a valid folder name
        return []
    backups = [backup for folder in folders if (backup := _backup_at(folder))]
    return sorted(backups, key=lambda b: (b.written_us, b.step, b.path.name))


def abandoned_by(backup: BackupInfo) -> list[BackupInfo]:
    """Return the branch that a run abandons when it resumes from a backup, by step.

    These are the backups of the run that were written after it, or at a higher step.
    """
    backups = list_backups(backup.run_dir)
    paths = [b.path for b in backups]
    later = backups[paths.index(backup.path) + 1 :] if backup.path in paths else []
    return sorted({*later, *(b for b in backups if b.step > backup.step)}, key=lambda b: (b.step, b.path.name))


def make_newest(backup: BackupInfo, *, now: datetime) -> BackupInfo:
    """Mark a backup that a run resumes from as the newest of the run, unless it is already.

    Otherwise the abandoned branch would still be the newest if the process is killed before its next backup. The
    manifest is replaced atomically; nothing else changes. Raises OSError.
    """
    manifest = _read_manifest(backup.path)
    if manifest is None or [b.path for b in list_backups(backup.run_dir)[-1:]] == [backup.path]:
        return backup
    written_us = _next_written_us(backup.run_dir, now)
    write_text(backup.path / MANIFEST, json.dumps({**manifest, "written_us": written_us}, indent=1))
    return replace(backup, written_us=written_us)


def newest_resumable(workspace: Path) -> BackupInfo | None:
    """Return the newest backup of the newest run in a workspace that has a backup; None without a backup."""
    try:
        runs = sorted((workspace / "runs").iterdir(), key=age_of, reverse=True)
    except (OSError, ValueError):
        return None
    return next((backups[-1] for run in runs if (backups := list_backups(run))), None)


def find_backup(path: Path) -> BackupInfo:
    """Return the backup a path refers to: a backup, a run (its newest backup), or a workspace (of its newest run).

    Raises DarkroomError if there is no complete backup.
    """
    if (backup := _backup_at(path)) is not None:
        return backup
    if backups := list_backups(path):
        return backups[-1]
    if (newest := newest_resumable(path)) is not None:
        return newest
    raise DarkroomError(
        f"There is no complete backup in {path}.",
        advice="Choose a run's folder (workspace/runs/...), one of its backups, or the workspace.",
    )


def verify(backup: BackupInfo) -> None:
    """Compare every file with the manifest. Raises DarkroomError naming the first one that differs."""
    manifest = _read_manifest(backup.path)
    files = {MANIFEST: None} if manifest is None else {n: facts["sha256"] for n, facts in manifest["files"].items()}
    for name, sha256 in files.items():
        file = backup.path / name
        if sha256 is None or not file.is_file() or sha256_of(file) != sha256:
            raise DarkroomError(
                f"The backup {backup.path} is damaged: {name} does not match its checksum.",
                advice="Resume from an older backup of the run.",
            )


def fingerprint(backup: Path) -> str:
    """Return a hash of the state in a backup, which stays the same when it is marked as the newest.

    Raises FileNotFoundError if it is not complete.
    """
    manifest = _read_manifest(backup)
    if manifest is None:
        raise FileNotFoundError(f"The backup {backup} is not complete.")
    hashes = sorted((name, facts["sha256"]) for name, facts in manifest["files"].items())
    return hashlib.sha256(json.dumps(hashes).encode()).hexdigest()


def best_in(backup: Path, by: str) -> Path | None:
    """Return the best model of a kind ("validation") in a backup; None if it has none, or a changed one."""
    entries = (_read_manifest(backup) or {}).get(BEST, {})
    files = {n: f for n, f in entries.items() if n.startswith(f"{BEST}/{by}/")} if isinstance(entries, dict) else {}
    if not files or not all(
        _is_entry(f) and (backup / n).is_file() and sha256_of(backup / n) == f["sha256"] for n, f in files.items()
    ):
        return None
    folder = backup / BEST / by
    return next((path for path in map(folder.joinpath, ("model.safetensors", "model")) if path.exists()), None)


def remove_older(run_dir: Path, *, keep: int) -> None:
    """Remove all complete backups of a run except the `keep` newest; 0 keeps all."""
    if keep > 0:
        for backup in list_backups(run_dir)[:-keep]:
            with suppress(OSError):  # the next time
                remove_folder(backup.path)


def _backup_at(folder: Path) -> BackupInfo | None:
    """Return the backup in a folder if it is complete."""
    manifest = _read_manifest(folder)
    if manifest is None or not all(has_size(folder / n, f["bytes"]) for n, f in manifest["files"].items()):
        return None
    return BackupInfo(folder, manifest["step"], manifest["epoch"], manifest["created"], _written_us(manifest))


def _written_us(manifest: dict[str, Any]) -> int:
    """Return the time a backup was written, for ordering; manifests of older versions only have the second."""
    match manifest:
        case {"written_us": int(written_us)}:
            return written_us
        case _:
            return _microseconds(manifest["created"])


def _microseconds(created: str) -> int:
    try:
        return int(datetime.fromisoformat(created).timestamp()) * 1_000_000
    except (ValueError, OverflowError, OSError):  # not a valid date
        return 0


def _next_written_us(run_dir: Path, now: datetime) -> int:
    """Return the time for the next backup of a run: now, or just after its newest if the clock is behind that."""
    newest_us = max((b.written_us for b in list_backups(run_dir)), default=0)
    return max(int(now.timestamp() * 1_000_000), newest_us + 1)


def has_size(file: Path, size_bytes: int) -> bool:
    """Return whether a file is there with this size."""
    try:
        return file.is_file() and file.stat().st_size == size_bytes
    except (OSError, ValueError):
        return False


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    match manifest := read_json_object(folder / MANIFEST):
        case {"format": number, "step": int(), "epoch": int(), "created": str(), "files": dict(files)}:
            return manifest if number == _FORMAT and all(map(_is_entry, files.values())) else None
        case _:
            return None


def _is_entry(facts: object) -> bool:
    match facts:
        case {"bytes": int(), "sha256": str()}:
            return True
        case _:
            return False
