"""The folder of a run: its name, its age, and its copies of the files that the run started from.

Runs are ordered by a number in each folder, which no clock and no summer time can break. With the copies a run can be
resumed when the files themselves are gone.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from modules.system.atomic import flush_folder, make_folder, write_text
from modules.system.errors import DarkroomError
from modules.system.regular_files import read_json_object

RUN_FILE = "run.json"
MAX_NAME_CHARS = 80
_STAMP, _STAMP_CHARS = "%Y-%m-%d_%H-%M-%S", 19  # of a run's folder


def new_run_dir(workspace: Path, *, now: datetime) -> Path:
    """Create and return a folder for a new run, the newest of the workspace; never an existing one. Raises OSError."""
    stem = now.strftime(_STAMP)
    make_folder(workspace / "runs")
    for suffix in ["", *(f"-{n}" for n in range(2, 1000))]:
        path = workspace / "runs" / (stem + suffix)
        try:
            path.mkdir()
        except FileExistsError:
            continue
        try:
            _give_number(path, begun=now.timestamp())
        except BaseException:
            path.rmdir()
            raise
        flush_folder(path.parent)
        return path
    raise DarkroomError(f"No free name for a new run in {workspace}.", advice="Delete old runs there.")


def started_at(run_dir: Path) -> datetime | None:
    """Return when a run first started, by its folder's name; None for a renamed folder."""
    try:
        return datetime.strptime(run_dir.name[:_STAMP_CHARS], _STAMP)
    except ValueError:
        return None


def _give_number(run_dir: Path, *, begun: float) -> None:
    """Write the number of a new run into its folder, one more than the largest of its workspace, and when it began.

    `begun` is in seconds since 1970, which summer time does not change. Raises OSError.
    """
    number = 1 + max((_number_of(path) for path in run_dir.parent.iterdir()), default=0)
    write_text(run_dir / RUN_FILE, json.dumps({"number": number, "begun": begun}))


def age_of(run_dir: Path) -> tuple[int, str, int, str]:
    """Return a sort key that orders the runs of a workspace by age, the oldest first.

    Runs of versions without numbers come first, by the time in their names: its second, then the numeric suffix ("-10"
    follows "-9").
    """
    return _number_of(run_dir), run_dir.name[:19], len(run_dir.name), run_dir.name


def begun_at(run_dir: Path) -> float | None:
    """Return when a run began, in seconds since 1970; None for a run of a version that did not write it."""
    begun = _content_of(run_dir).get("begun")
    return begun if isinstance(begun, float) else None


def given_name(run_dir: Path) -> str:
    """Return the name that a person has given to a run; "" without one."""
    name = _content_of(run_dir).get("name")
    return name[:MAX_NAME_CHARS] if isinstance(name, str) else ""


def give_name(run_dir: Path, name: str) -> None:
    """Name a run; an empty name removes the given one. Its folder stays as it is. Raises OSError."""
    text = " ".join(name.split())[:MAX_NAME_CHARS]
    content = {key: value for key, value in _content_of(run_dir).items() if key != "name"}
    write_text(run_dir / RUN_FILE, json.dumps({**content, "name": text} if text else content))


def _number_of(run_dir: Path) -> int:
    number = _content_of(run_dir).get("number")
    return number if isinstance(number, int) else 0


def _content_of(run_dir: Path) -> dict[str, Any]:
    return read_json_object(run_dir / RUN_FILE) or {}


def start_copy_in(run_dir: Path) -> Path:
    """Return the path of the copy in a run's folder, whether or not it exists: a run with a new adapter has none."""
    return run_dir / "start.safetensors"


def existing_start_copy(run_dir: Path) -> Path | None:
    """Return the path of the copy in a run's folder if it exists."""
    path = start_copy_in(run_dir)
    return path if path.is_file() else None


def weights_copy_in(run_dir: Path) -> Path:
    """Return the path of the copy of another run's weights; only a fork with weights only may have one."""
    return run_dir / "start_weights.safetensors"


def stored_path(path: str, run_dir: Path) -> str:
    """Return a path as files in a run's folder store it: relative if it is in the folder, which may be moved."""
    folder = run_dir.absolute()
    return Path(path).relative_to(folder).as_posix() if path and Path(path).is_relative_to(folder) else path
