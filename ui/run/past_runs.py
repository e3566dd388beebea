"""Earlier runs of a workspace: their names, and their curves, read in the background. No Tk."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainer.run_folder.event_log import EVENTS_FILE
from ui.run.chart_model import PastRun
from ui.run.series import EMPTY, Series

_NAMES = {"loss": "loss", "smoothed": "smoothed_loss"}


def run_folders(workspace: Path, *, without: Path | None = None) -> list[Path]:
    """Return the folders of a workspace's runs that have events, newest first."""
    try:
        found = [path for path in (workspace / "runs").iterdir() if (path / EVENTS_FILE).is_file()]
    except OSError:
        return []
    return sorted((path for path in found if path != without), key=lambda path: path.name, reverse=True)


def read_past_run(run_dir: Path) -> PastRun:
    """Return the loss curves of a run, of all its attempts; empty ones where nothing can be read.

    Only the lines of steps are read, and of those only the losses: a run of 100,000 steps takes about a second.
    """
    try:
        with (run_dir / EVENTS_FILE).open(encoding="utf-8", errors="replace") as file:
            return PastRun(run_dir.name, _series(line for line in file if '"StepFinished"' in line[:40]))
    except OSError:
        return PastRun(run_dir.name)


def _series(lines: Iterable[str]) -> dict[str, Series]:
    found = dict.fromkeys(_NAMES, EMPTY)
    for line in lines:
        try:
            event: Any = json.loads(line)
        except (ValueError, RecursionError):  # half written
            continue
        step = event.get("step") if isinstance(event, dict) else None
        if not isinstance(step, int):
            continue
        for name, key in _NAMES.items():
            value = event.get(key)
            found[name] = found[name].add(step, value if isinstance(value, int | float) else None)
    return found
