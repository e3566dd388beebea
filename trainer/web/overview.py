"""The page's first view: the runs, the queue, and the configs that can be started."""

from __future__ import annotations

import os
from pathlib import Path

from modules.config.presets import Preset, list_presets
from modules.system.errors import DarkroomError
from trainer.event_lines import from_line
from trainer.events import PhaseChanged, RunFailed, RunFinished, RunStarted, StepFinished
from trainer.run_folder.event_log import EVENTS_FILE
from trainer.run_folder.records import RunRecord, time_of
from trainer.run_queue.file import QueueFile
from trainer.run_queue.items import RunQueue
from trainer.run_status import RunStatus
from trainer.timing import Timing
from trainer.web.runs import Runs, id_of, image_id
from trainer.web.shown import Shown
from trainer.web.starts import Starts
from trainer.wording import PHASE_LABELS

_MAX_TAIL_BYTES = 64_000


def overview_of(runs: Runs, queue: QueueFile, starts: Starts) -> Shown:
    """Return the runs and the queue for the page."""
    return {"runs": [_shown_run(record) for record in runs.newest()], "queue": _shown_queue(queue, starts)}


def startable() -> list[Preset]:
    """Return the saved configs: the user's presets, and the demo's."""
    presets = list_presets()
    return [p for p in presets if not p.is_built_in] + [p for p in presets if p.is_demo]


def shown_presets() -> list[Shown]:
    """Return the saved configs for the page."""
    return [{"id": id_of(preset.path), "name": preset.name} for preset in startable()]


def _shown_run(record: RunRecord) -> Shown:
    is_running = record.status is RunStatus.RUNNING
    label = f"On {record.remote}" if record.status is RunStatus.ELSEWHERE else record.status.label
    started = record.started
    return {
        "id": id_of(record.run_dir),
        "name": record.title,
        "started": f"{started:%Y-%m-%dT%H:%M:%S}" if started else "",
        "status": record.status.value,
        "label": label,
        "message": record.message,
        "step": record.step,
        "total": record.total_steps,
        "seconds": round(record.seconds),
        "remote": record.remote,
        "thumb": image_id(record.newest_sample, record.run_dir) if record.newest_sample else "",
        "samples": record.num_samples,
        **(_progress_of(record.run_dir) if is_running else {"phase": "", "left": None}),
    }


def newest_phase(run_dir: Path) -> str:
    """Return the newest phase of a run that trains."""
    return _phase_and_time_left(run_dir)[0]


def _progress_of(run_dir: Path) -> Shown:
    """Return the newest phase of a run that trains, and its seconds left."""
    phase, left = _phase_and_time_left(run_dir)
    return {"phase": PHASE_LABELS.get(phase, ""), "left": left, "choosing": phase == "choosing"}


def _phase_and_time_left(run_dir: Path) -> tuple[str, float | None]:
    """Read the newest phase, and the seconds left of the run, from the end of its log."""
    phase, timing, newest = "", Timing(), None
    for line in _last_lines(run_dir):
        event, at_seconds = from_line(line), time_of(line) or 0.0
        if isinstance(event, RunStarted | RunFinished | RunFailed):  # before it is an earlier attempt
            phase, timing, newest = "", Timing(), None
        elif isinstance(event, PhaseChanged):
            phase, timing = event.phase, timing.after_phase(event.phase, at_seconds)
        elif isinstance(event, StepFinished):
            phase, timing, newest = "training", timing.after_step(event.step, at_seconds), event
    if newest is None:
        return phase or "starting", None
    by_clock = timing.seconds_left(newest.total_steps)
    return phase, newest.seconds_left if by_clock is None else max(by_clock, newest.seconds_left or 0.0)


def _last_lines(run_dir: Path) -> list[str]:
    try:
        with (run_dir / EVENTS_FILE).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []


def _shown_queue(file: QueueFile, starts: Starts) -> Shown:
    try:
        queue, problem = file.read(), ""
    except DarkroomError as error:
        queue, problem = RunQueue(), str(error)
    running = {item.machine for item in queue.items if file.runner_on(item.machine) is not None}
    if starts.is_queue_under_way:
        running.add("")
    return {
        "running": bool(running),
        "can_run": any(item.is_open and item.machine not in running for item in queue.items),
        "problem": problem,
        "items": [
            {
                "number": item.number,
                "name": item.name,
                "machine": item.machine,
                "state": item.state.value,
                "label": item.state.label,
                "message": item.message,
                "run": id_of(Path(item.run_dir)) if item.run_dir else "",
            }
            for item in queue.items
        ],
    }
