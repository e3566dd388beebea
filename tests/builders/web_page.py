"""A workspace with runs as their folders look while they train, and the page over it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from PIL import Image
from starlette.testclient import TestClient

from trainer.event_lines import to_line
from trainer.events import Event, PhaseChanged, RunStarted, SampleReady, StepFinished, ValidationFinished
from trainer.run_folder.event_log import EVENTS_FILE
from trainer.run_folder.run_dir import new_run_dir
from trainer.run_folder.run_lock import RunLock
from trainer.run_queue.file import QueueFile
from trainer.web.access import Access
from trainer.web.runs import Runs
from trainer.web.site import Site

ORIGIN = "http://127.0.0.1:7866"
COMMAND = {"x-darkroom": "1"}


def started(run_dir: Path, *, first_step: int = 0) -> RunStarted:
    """Return the first event of a run."""
    return RunStarted(str(run_dir), "sd", "denoise", "adapter", 2, 40, first_step, 12, 0, 100, ("unet",), "cpu", 1)


def finished_step(step: int, loss: float | None = 0.5) -> StepFinished:
    """Return the event of a step."""
    return StepFinished(1, 2, step, 20, step, 40, loss, loss, 1.0, 2.0, 40.0 - step)


def log(run_dir: Path, *events: Event, at: str = "2026-11-29T12:00:00") -> None:
    """Append events to the log of a run."""
    with (run_dir / EVENTS_FILE).open("a", encoding="utf-8") as file:
        file.writelines(f"{to_line(event, time=at)}\n" for event in events)


def make_run(workspace: Path) -> Path:
    """Return the folder of a run with two steps, a validation and a sample."""
    run_dir = new_run_dir(workspace, now=datetime(2026, 11, 29, 12, 0, 0))
    sample = run_dir / "samples" / "01 a zog" / "step-00000002.png"
    sample.parent.mkdir(parents=True)
    Image.new("RGB", (96, 64), "orange").save(sample)
    (run_dir / "config.json").write_text(json.dumps({"output": {"destination": "models/zog.safetensors"}}))
    log(
        run_dir,
        started(run_dir),
        PhaseChanged("training"),
        finished_step(1),
        finished_step(2, 0.25),
        ValidationFinished(2, 0.3),
        SampleReady(2, 0, "a zog", str(sample)),
    )
    return run_dir


@contextmanager
def training(run_dir: Path) -> Iterator[None]:
    """Let a run train as far as others can see."""
    lock = RunLock(run_dir)
    try:
        yield
    finally:
        lock.release()


def page(workspace: Path, queue: Path, access: Access | None = None) -> TestClient:
    """Return a browser at the page of a workspace."""
    site = Site(Runs(lambda: [workspace]), QueueFile(queue), access or Access(7866))
    return TestClient(site.app(), base_url=ORIGIN, raise_server_exceptions=False)
