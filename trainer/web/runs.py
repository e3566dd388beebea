"""The runs of the page, and the files of runs that it serves. Requests name them by ids, never by paths.

An id is a digest of a path, and is looked up in lists. Links are not followed: a file is served only from where its run
wrote it.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from modules.config.presets import list_presets
from modules.config.schema import Config
from modules.system.errors import DarkroomError
from modules.system.paths import PROGRAM_ROOT, from_root
from trainer.run_folder.choices import Request, all_requests
from trainer.run_folder.records import RunRecord, is_run, read_record, run_dirs_of, stamp_of
from trainer.run_queue.items import RunQueue

IMAGE_TYPES: Mapping[str, str] = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}
_SAMPLES = "samples"
_MAX_RUNS = 40


class Runs:
    """The newest runs of some workspaces. Only changed runs are read again."""

    def __init__(self, workspaces: Callable[[], Iterable[Path]]) -> None:
        self._workspaces = workspaces
        self._known: dict[Path, tuple[tuple[object, ...], RunRecord]] = {}
        self._lock = threading.Lock()

    def newest(self) -> list[RunRecord]:
        """Return the records of the newest runs."""
        with self._lock:
            known: dict[Path, tuple[tuple[object, ...], RunRecord]] = {}
            for run_dir in self._run_dirs():
                stamp = stamp_of(run_dir)
                before = self._known.get(run_dir)
                record = before[1] if before is not None and before[0] == stamp else read_record(run_dir)
                known[run_dir] = (stamp, record)
            self._known = known
            return [record for _, record in known.values()]

    def find(self, run_id: str) -> Path | None:
        """Return the folder of a run by its id; None if there is none."""
        known = next((run_dir for run_dir in self._known if id_of(run_dir) == run_id), None)
        if known is not None and _is_real_run(known):  # a page with many samples sends a request for each
            return known
        return next((run_dir for run_dir in self._run_dirs() if id_of(run_dir) == run_id), None)

    def _run_dirs(self) -> list[Path]:
        folders = (folder for folder in run_dirs_of(self._workspaces()) if _is_real_run(folder))
        return [folder for folder, _ in zip(folders, range(_MAX_RUNS), strict=False)]


def usual_workspaces(queue: Callable[[], RunQueue]) -> list[Path]:
    """Return the workspaces below `workspace` of the program, and the ones of the user's presets and of the queue."""
    default = from_root(Config().general.workspace_dir)
    configs = [p.load().config for p in list_presets() if not p.is_built_in]
    with suppress(DarkroomError):  # the page shows what is wrong with the queue
        configs += [item.config for item in queue().items]
    below = PROGRAM_ROOT / "workspace"
    folders = [f for f in below.iterdir() if f.is_dir()] if below.is_dir() else []
    return list(dict.fromkeys([default, *folders, *(from_root(c.general.workspace_dir) for c in configs)]))


def id_of(path: Path | PurePosixPath) -> str:
    """Return the id of a path: the page names files by it."""
    return hashlib.blake2b(os.fsencode(path), digest_size=8).hexdigest()


def image_id(path: str, run_dir: Path) -> str:
    """Return the id of an image in a run's folder; empty for one outside it. A folder may have been moved since."""
    parts = Path(path).parts
    if run_dir.name not in parts:
        return ""
    start = len(parts) - 1 - parts[::-1].index(run_dir.name)
    return id_of(PurePosixPath(*parts[start + 1 :]))


def image_of(run_dir: Path, wanted: str) -> Path | None:
    """Return a sample of a run by its id; None if the run has none of that id."""
    images = (path for path in real_files(run_dir / _SAMPLES) if path.suffix.lower() in IMAGE_TYPES)
    return next((path for path in images if id_of(PurePosixPath(path.relative_to(run_dir))) == wanted), None)


def request_of(run_dir: Path, name: str) -> Request | None:
    """Return a request for a choice by its name; None if it is not open any more."""
    return next((request for request in all_requests(run_dir) if request.name == name), None)


def candidate_of(request: Request, number: int) -> Path | None:
    """Return the file of an image of a request; None for another number, or a file that is not the run's."""
    if number not in range(len(request.images)):
        return None
    path = request.images[number]
    is_real = (
        path.suffix.lower() in IMAGE_TYPES and path.is_file() and path.resolve().parent == request.folder.resolve()
    )
    return path if is_real else None


def _is_real_run(folder: Path) -> bool:
    """Whether a folder is a run's, and lies where it seems to lie."""
    return is_run(folder) and folder.resolve() == folder.parent.parent.resolve() / "runs" / folder.name


def real_files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder; links are not followed."""
    if folder.is_symlink():
        return
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            if path.is_file() and not path.is_symlink():
                yield path
