"""The order of the runs of a workspace: a number in each run's folder, which no clock and no summer time can break."""

from __future__ import annotations

import json
from pathlib import Path

from modules.system.atomic import write_text

_FILE = "run.json"


def give_number(run_dir: Path) -> None:
    """Write the number of a new run into its folder: one more than that of any other run beside it. Raises OSError."""
    number = 1 + max((_number_of(path) for path in run_dir.parent.iterdir()), default=0)
    write_text(run_dir / _FILE, json.dumps({"number": number}))


def age_of(run_dir: Path) -> tuple[int, str, int, str]:
    """Return a sort key that orders the runs of a workspace by age, the oldest first.

    Runs of versions without numbers come first, by the time in their names: its second, then the numeric suffix ("-10"
    follows "-9").
    """
    return _number_of(run_dir), run_dir.name[:19], len(run_dir.name), run_dir.name


def _number_of(run_dir: Path) -> int:
    try:
        data = json.loads((run_dir / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return 0
    match data:
        case {"number": int(number)}:
            return number
        case _:
            return 0
