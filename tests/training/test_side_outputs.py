"""What a run can do without: where it cannot be written, that is a warning, and the run finishes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.system.leftovers import temporary_path
from tests.builders.configs import laid_over, small_config
from tests.builders.disk.recorder import NOBODY
from tests.builders.images import draw_folder
from tests.builders.runs import run
from trainer.events import BackupSaved, Event, ModelSaved, RunStarted, SampleReady, StepFinished, WarningRaised

SAMPLE = {"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 1, "guidance": 1.0}


def test_a_log_samples_and_saves_that_cannot_be_written_are_warnings(
    tiny_sd: Path, images: Path, tmp_path: Path
) -> None:
    """One failed write of TensorBoard, or one failed sample, ended the run."""
    every = {"n": 2, "unit": "step"}
    config = small_config(
        tmp_path,
        model=tiny_sd,
        images=images,
        general={"tensorboard": True},
        sampling={"every": every, "prompts": [SAMPLE]},
        backup={"save_every": every},
    )

    def put_in_the_way(event: Event, _: Any) -> None:
        if isinstance(event, RunStarted):
            run_dirs.append(Path(event.run_dir))
        elif isinstance(event, StepFinished) and event.step == 1:  # the dry run would have found it before
            for name in ("tensorboard", "samples", "save"):
                (run_dirs[0] / name).write_text("a file where a folder has to be")

    run_dirs: list[Path] = []
    ran = run(config, on_event=put_in_the_way)
    assert ran.finished.outcome == "finished"
    assert [s.is_final for s in ran.of(ModelSaved)] == [True]
    assert not ran.of(SampleReady)
    messages = [w.message for w in ran.of(WarningRaised)]
    for name, folder in (
        ("The TensorBoard log", "tensorboard"),
        ("The samples", "samples"),
        ("An intermediate save", "save"),
    ):
        assert [str(run_dirs[0] / folder) in m for m in messages if m.startswith(name)] == [True], messages


def test_the_history_is_flushed_with_each_backup(
    tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure left a backup without the curves up to it."""
    config = small_config(
        tmp_path, model=tiny_sd, images=images, backup={"every": {"n": 2, "unit": "step"}}, training={"epochs": 1}
    )
    flushed: list[tuple[int, int]] = []

    def fsync(handle: int) -> None:
        status = os.fstat(handle)
        flushed.append((status.st_ino, status.st_size))

    monkeypatch.setattr(os, "fsync", fsync)
    sizes: list[int] = []

    def note(event: Event, _: Any) -> None:
        if isinstance(event, BackupSaved):
            log = Path(event.path).parents[1] / "events.jsonl"
            sizes.append(log.stat().st_size)
            assert (log.stat().st_ino, log.stat().st_size) in flushed

    assert run(config, on_event=note).finished
    assert sizes


def test_what_killed_runs_left_is_removed_and_named_at_the_next_start(
    tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tmp_path, model=tiny_sd, images=images, training={"epochs": 1})
    places = [
        tmp_path / "workspace" / "runs" / "2020-01-01_00-00-00" / "backup" / "step-00000004",
        Path(config.output.destination),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpid", lambda: NOBODY)
        left = [temporary_path(place) for place in places]
    for path in left:
        path.mkdir(parents=True)
        (path / "weights").write_bytes(b"x" * 1000)
    ran = run(config)
    assert ran.finished
    assert not any(path.exists() for path in left)
    [message] = [w.message for w in ran.of(WarningRaised) if "unfinished" in w.message]
    assert all(str(path) in message for path in left)


@pytest.mark.skipif(sys.platform != "linux", reason="names are Unicode there")
def test_images_whose_names_are_not_valid_utf_8_are_trained(tiny_sd: Path, tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 2)
    for number in range(2):
        for suffix in (".png", ".txt"):
            name = os.fsdecode(b"\xff%d" % number)
            (folder / f"{number:03d}{suffix}").rename(folder / f"{name}{suffix}")
    config = small_config(tmp_path, model=tiny_sd, images=folder)
    ran = run(laid_over(config, {"training": {"epochs": 1}}))
    assert ran.finished.outcome == "finished"
    assert len(ran.of(StepFinished)) == 1
    assert Image.open(next(folder.glob("*.png"))).size == (64, 64)
