"""The newest runs of some workspaces: reading them, and each as text. Imported when Home reads runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from modules.system.problem import count
from trainer.run_folder.records import RunRecord, read_record, run_dirs_of, stamp_of
from ui.features.runs.model import start_text
from ui.loop.wording import STATUS_COLOURS

MAX_RUNS = 5
Stamps = Mapping[Path, tuple[object, ...]]


def read_newest(
    workspaces: Sequence[Path], known: Mapping[Path, RunRecord], stamps: Stamps
) -> tuple[tuple[RunRecord, ...], Stamps]:
    """Return the newest runs and their stamps. Those that are known with the same stamp are not read again."""
    now = {run_dir: stamp_of(run_dir) for run_dir in run_dirs_of(workspaces)[:MAX_RUNS]}
    is_same = {run_dir: run_dir in known and stamps.get(run_dir) == stamp for run_dir, stamp in now.items()}
    return tuple(known[run_dir] if is_same[run_dir] else read_record(run_dir) for run_dir in now), now


def describe_run(record: RunRecord) -> tuple[str, str, str, str]:
    """Return the name of a run, how it ended, the colour of that, and when it was started."""
    steps = ""
    if record.total_steps:
        is_whole = record.step >= record.total_steps
        steps = f", {count(record.step, 'step')}" if is_whole else f", step {record.step:,} of {record.total_steps:,}"
    colour = STATUS_COLOURS.get(record.status, "label")
    return record.title, f"{record.status.label}{steps}", colour, start_text(record)
