"""A start scans each folder of images once, for the check and the run, and notices changes before the first step."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modules.config.codec import save_file
from modules.config.schema import Config
from modules.data import dataset, pairs, scan
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.runs import Ran, run
from tests.ui.fake_engine import FakeEngine
from tests.ui.recorder import Recorder
from trainer.__main__ import main
from trainer.commands import CommandDesk
from trainer.data.datasets import datasets_of
from trainer.events import RunFinished, RunStarted, StepFinished, WarningRaised
from trainer.launch import RunRequest
from trainer.run import loading
from trainer.run.execute import execute_guarded
from ui.features.run.model import Starter
from ui.forms.findings import Findings
from ui.forms.model import FormModel
from ui.loop.background import Background, Job
from ui.loop.pump import Pump
from ui.loop.run_session import RunSession

CHANGED = "Images or captions have changed"


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> Counter[Path]:
    """How often each folder was scanned."""
    counts: Counter[Path] = Counter()

    def counted(folder: Path, **settings: Any) -> scan.Scan:
        counts[folder] += 1
        return pairs.scan_source(folder, **settings)

    monkeypatch.setattr(dataset, "scan_source", counted)
    return counts


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [draw_folder(tmp_path / name, sizes=[(64, 64)] * 2) for name in ("cats", "dogs", "measured")]


@pytest.fixture
def config(tiny_sd: Path, folders: list[Path], tmp_path: Path) -> Config:
    concepts = [{"path": str(f), "kind": "validation" if f.name == "measured" else "training"} for f in folders]
    untrained = {"text_encoder": {"train": False}}
    return small_config(
        tmp_path, model=tiny_sd, images=folders[0], concepts=concepts, training={"epochs": 1}, parts=untrained
    )


def carried_out(request: RunRequest) -> Ran:
    ran = Ran()
    execute_guarded(request, emit=ran.events.append, desk=CommandDesk())
    return ran


class InTurn(Background):
    """Does its jobs one after the other when a test says so, on its thread: no wait, however busy the machine is."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: deque[Job] = deque()

    def _submit(self, job: Job) -> Job:
        self.jobs.append(job)
        return job

    def work(self) -> None:
        while self.jobs:
            job = self.jobs.popleft()
            job.done(job.work())


def pressed_start(config: Config, meanwhile: Callable[[], object] = lambda: None) -> Ran:
    """Press Start in the window; `meanwhile` happens between its check and the run."""
    engine, pump, asked, background = FakeEngine(), Pump(lambda _ms, _callback: None), Recorder(), InTurn()
    asked.answers["confirm_start"] = True
    session = RunSession(background, launch_run=engine.launch)
    Starter(FormModel(config), session, pump, asked, Findings(), before_start=meanwhile).start()
    background.work()
    assert engine.run is not None
    engine.run.end(RunFinished("finished", 0, "Done."))
    return carried_out(engine.requests[0])


def warnings(ran: Ran) -> list[str]:
    return [w.message for w in ran.of(WarningRaised) if w.message.startswith(CHANGED)]


def test_a_start_in_the_window_scans_once(config: Config, folders: list[Path], scans: Counter[Path]) -> None:
    ran = pressed_start(config)
    assert ran.finished.outcome == "finished"
    assert scans == dict.fromkeys(folders, 1)
    assert not warnings(ran)


def test_a_start_on_the_command_line_scans_once(
    config: Config, folders: list[Path], scans: Counter[Path], tmp_path: Path
) -> None:
    save_file(config, tmp_path / "config.json")
    assert main(["train", str(tmp_path / "config.json")]) == 0
    assert scans == dict.fromkeys(folders, 1)


def test_filling_the_caches_scans_once(config: Config, folders: list[Path], scans: Counter[Path]) -> None:
    assert carried_out(RunRequest(config, "cache", in_window=False)).finished.outcome == "cached"
    assert scans == dict.fromkeys(folders, 1)


def test_what_changes_after_the_check_is_scanned_again_and_said(
    config: Config, folders: list[Path], scans: Counter[Path]
) -> None:
    def add_an_image() -> None:
        draw_folder(folders[1], sizes=[(64, 64)] * 3)

    ran = pressed_start(config, add_an_image)
    assert ran.of(RunStarted)[0].num_images == 5
    assert len(warnings(ran)) == 1
    assert scans == dict.fromkeys(folders, 2)


def test_what_changes_while_the_model_loads_is_scanned_again_and_said(
    config: Config, folders: list[Path], scans: Counter[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_model = loading.load_model

    def slowly(*arguments: Any, **options: Any) -> Any:
        (folders[0] / "001.png").unlink()
        return load_model(*arguments, **options)

    monkeypatch.setattr(loading, "load_model", slowly)
    ran = run(config)
    assert ran.of(RunStarted)[0].num_images == 3
    assert len(warnings(ran)) == 1


def test_the_images_of_another_config_are_not_taken_over(config: Config, scans: Counter[Path]) -> None:
    other = laid_over(config, {"training": {"batch_size": 1}})
    ran = carried_out(RunRequest(other, datasets=datasets_of(config), in_window=False))
    assert len(ran.of(StepFinished)) == 4
    assert not warnings(ran)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "000.txt").write_text("another caption"),
        lambda folder: (folder / "000.txt").unlink(),
        lambda folder: (folder / "000.png").unlink(),
        lambda folder: (folder / "000.png").rename(folder / "renamed.png"),
        lambda folder: os.utime(folder / "000.png", ns=(1, 1)),
        lambda folder: draw_folder(folder / "below", sizes=[(64, 64)]),
        lambda folder: (folder.parent / "all.txt").write_text("one for all"),
        lambda folder: folder.rename(folder.parent / "elsewhere"),
    ],
)
def test_a_change_of_files_shows_without_opening_any(
    config: Config, folders: list[Path], change: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folders[0]
    concept = {"path": str(folder), "include_subfolders": True}
    one_file = {**concept, "caption_source": "one_file", "captions_file": str(folder.parent / "all.txt")}
    found = datasets_of(laid_over(config, {"concepts": [concept, one_file]}))
    (folder / "notes.md").write_text("not read by a scan")
    with monkeypatch.context() as patch:
        patch.setattr(scan, "open_image", None)
        patch.setattr(scan, "read_captions", None)
        assert found.is_current()
        change(folder)
        assert not found.is_current()
