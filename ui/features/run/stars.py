"""Starred samples of a run, kept in its folder as starred.json: paths below the folder. No Tk."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from modules.system.atomic import write_text

STARS_FILE = "starred.json"


def read_stars(run_dir: Path) -> frozenset[str]:
    """Return the starred samples of a run; none if there is no readable file."""
    try:
        data = json.loads((run_dir / STARS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return frozenset()
    return frozenset(name for name in data if isinstance(name, str)) if isinstance(data, list) else frozenset()


def write_stars(run_dir: Path, stars: Collection[str]) -> None:
    """Write the starred samples of a run, atomically. Raises OSError."""
    write_text(run_dir / STARS_FILE, json.dumps(sorted(stars), indent=1) + "\n")


def name_of(path: Path, run_dir: Path) -> str:
    """Return the name of a sample in the file: its path below the run's folder, or all of it if it is elsewhere."""
    return path.relative_to(run_dir).as_posix() if path.is_relative_to(run_dir) else path.as_posix()
