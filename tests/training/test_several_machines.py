"""A run on two machines is the run of two processes on one: network namespaces stand for the machines."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from modules.config.codec import save_file
from modules.config.schema import Config
from tests.builders.configs import small_config
from tests.builders.images import draw_folder
from tests.builders.machines import Machines, connected_machines, why_no_machines
from tests.training.test_several_processes import HARD, SHARDED, SIZES, in_folder, torchrun
from trainer.run_folder.backup import find_backup
from trainer.run_folder.shards import read_whole

pytestmark = [pytest.mark.full, pytest.mark.slow]
EventData = dict[str, Any]
UNMEASURED: dict[str, Any] = {"validation": {"every": {"unit": "never"}}}


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    if reason := why_no_machines():
        pytest.skip(reason)
    with connected_machines() as connected:
        yield connected


@pytest.fixture(scope="module")
def config(tiny_sd: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("machines")
    images = draw_folder(folder / "images", sizes=SIZES, captions=["a <zog> disc", "two discs", "nothing"])
    return small_config(folder, model=tiny_sd, images=images, **{**HARD, **UNMEASURED})


def written(config: Config, folder: Path, **changes: Any) -> Path:
    file = folder / "config.json"
    folder.mkdir()
    save_file(in_folder(config, folder, **changes), file)
    return file


def events_of(
    process: subprocess.Popen[str], on_event: Callable[[EventData], None] = lambda event: None
) -> list[EventData]:
    """Return the events of a run, from its first machine."""
    events: list[EventData] = []
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            events.append(json.loads(line))
            on_event(events[-1])
            if events[-1]["event"] in ("RunFinished", "RunFailed"):
                break
    return events


@contextmanager
def both(
    machines: Machines, file: Path, *, folders: Mapping[Path, Path] | None = None
) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str]]]:
    """Yield torchrun of each machine, and kill them. `folders` are the second machine's own."""
    with machines.torchrun(0, file) as first, machines.torchrun(1, file, folders=folders) as second:
        try:
            yield first, second
        finally:
            for process in (first, second):
                process.kill()


def losses_of(events: list[EventData]) -> list[float]:
    return [event["loss"] for event in events if event["event"] == "StepFinished"]


@pytest.mark.parametrize("changes", [{}, {**SHARDED, **UNMEASURED}], ids=["lora", "sharded"])
def test_a_run_on_two_machines_is_that_of_two_processes(
    machines: Machines, config: Config, tmp_path: Path, changes: dict[str, Any]
) -> None:
    one = written(config, tmp_path / "one", **changes)
    with torchrun(one) as process:
        expected = events_of(process)
        assert process.wait(timeout=60) == 0
    two = written(config, tmp_path / "two", **changes)
    folders: dict[Path, Path] = {}
    if not changes:  # what is sharded is written by both, into a folder that they share
        workspace, images = tmp_path / "two" / "workspace", Path(config.concepts[0].path)
        workspace.mkdir()
        folders = {workspace: tmp_path / "workspace of the other", images: tmp_path / "images of the other"}
        folders[workspace].mkdir()
        shutil.copytree(images, folders[images])
        for copied in folders[images].iterdir():
            os.utime(copied, (1, 1))
    with both(machines, two, folders=folders) as (first, second):
        events = events_of(first)
        assert (first.wait(timeout=60), second.wait(timeout=60)) == (0, 0)
    assert (events[-1]["event"], events[-1]["outcome"]) == ("RunFinished", "finished")
    assert losses_of(events) == losses_of(expected) != []
    ends = [find_backup(Path(run[-1]["backup_path"])).path for run in (expected, events)]
    weights, others = (read_whole(end, "weights") for end in ends)
    assert weights.keys() == others.keys()
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    if folders:
        assert list((tmp_path / "workspace of the other").iterdir()) == []  # only the first machine has a run folder
        cached = [event for event in events if event["event"] == "CacheProgress" and event["what"] == "images"]
        assert {event["total"] for event in cached} == {6}, "of 11 images: each machine encodes its share"


def test_a_stop_on_one_machine_stops_both(machines: Machines, config: Config, tmp_path: Path) -> None:
    """The launcher of the other machine waits for five minutes then, which torchrun has no option for."""
    file = written(config, tmp_path / "run", training={"epochs": 50})
    with both(machines, file) as (first, second):
        events = events_of(first, lambda event: second.send_signal(signal.SIGINT) if is_step(event, 2) else None)
        second.wait(timeout=60)
    assert (events[-1]["event"], events[-1]["outcome"]) == ("RunFinished", "stopped")
    assert find_backup(Path(events[-1]["backup_path"])).step == len(losses_of(events)) < 250


def test_a_machine_that_fails_ends_the_run_with_a_backup(machines: Machines, config: Config, tmp_path: Path) -> None:
    file = written(config, tmp_path / "run", training={"epochs": 50})
    with both(machines, file) as (first, second):

        def kill(event: EventData) -> None:
            for process in psutil.Process(second.pid).children(recursive=True) if is_step(event, 2) else ():
                process.kill()

        events = events_of(first, kill)
        assert 0 not in (first.wait(timeout=60), second.wait(timeout=60))
    assert events[-1]["event"] == "RunFailed"
    assert events[-1]["message"] == "Another process of this run has ended, and the run with it."
    assert find_backup(tmp_path / "run" / "workspace").step == len(losses_of(events))


def is_step(event: EventData, number: int) -> bool:
    return event["event"] == "StepFinished" and event["step"] == number


def test_a_machine_without_the_images_is_named(machines: Machines, config: Config, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    file = written(config, tmp_path / "run")
    images = Path(config.concepts[0].path)
    with both(machines, file, folders={images: tmp_path / "nothing"}) as (first, _):
        events = events_of(first)
    assert events[-1]["event"] == "RunFailed"
    assert events[-1]["message"] == (
        f"The process 2 of 2 failed: Machine 2 has no image {images / '000.png'}, on which the run trains."
    )
