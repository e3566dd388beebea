"""The order of the runs of a workspace: a number in each run's folder, which no clock and no summer time can break."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from modules.system.atomic import write_text

_FILE = "run.json"


def give_number(run_dir: Path, *, begun: float) -> None:
    """Write the number of a new run into its folder, one more than the largest of its workspace, and when it began.

    `begun` is in seconds since 1970, which summer time does not change. Raises OSError.
    """
    number = 1 + max((_number_of(path) for path in run_dir.parent.iterdir()), default=0)
    write_text(run_dir / _FILE, json.dumps({"number": number, "begun": begun}))


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


def _number_of(run_dir: Path) -> int:
    number = _content_of(run_dir).get("number")
    return number if isinstance(number, int) else 0


def _content_of(run_dir: Path) -> dict[str, Any]:
    try:
        content = json.loads((run_dir / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
