"""Runs on sources other than a folder: the same losses as on a folder, and exact when they are stopped and resumed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from modules.config.schema import Config
from tests.builders.configs import small_config
from tests.builders.images import draw_folder
from tests.builders.runs import Ran, assert_equal_tensors, losses, run, stop_at
from tests.builders.shards import write_shard
from trainer.commands import CommandDesk, Stop
from trainer.data.datasets import scan_watch
from trainer.events import Event, PhaseChanged, RunFinished, RunStarted, StepFinished
from trainer.launch import RunRequest
from trainer.run.execute import execute_guarded

SIZES = [(64, 64)] * 3 + [(96, 64)] * 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return draw_folder(tmp_path / "images", sizes=SIZES)


def config_of(tiny_sd: Path, folder: Path, concepts: list[dict[str, Any]], **data: Any) -> Config:
    return small_config(
        folder.parent,
        model=tiny_sd,
        images=folder,
        concepts=concepts,
        data=data,
        training={"epochs": 3, "batch_size": 2},
        parts={"text_encoder": {"train": False}},
    )


@pytest.mark.full
@pytest.mark.parametrize("latent_cache", [True, False])
def test_a_shard_is_trained_like_the_folder_it_was_made_of(tiny_sd: Path, folder: Path, latent_cache: bool) -> None:
    shard = write_shard(
        folder.parent / "shards" / "all.tar", {p.name: p.read_bytes() for p in sorted(folder.iterdir())}
    )
    plain = run(config_of(tiny_sd, folder, [{"path": str(folder)}], latent_cache=latent_cache))
    for path in (shard, shard.parent):
        ran = run(config_of(tiny_sd, folder, [{"path": str(path)}], latent_cache=latent_cache))
        assert losses(ran) == losses(plain)
        assert_equal_tensors(ran.weights, plain.weights)


@pytest.mark.full
def test_a_run_on_shards_and_balanced_concepts_resumes_exactly(tiny_sd: Path, folder: Path) -> None:
    members = {p.name: p.read_bytes() for p in sorted(folder.iterdir())}
    shard = write_shard(folder.parent / "all.tar", members)
    regularization = draw_folder(folder.parent / "reg", sizes=[(64, 64)] * 5)
    concepts = [
        {"path": str(shard), "balancing": "samples", "samples_per_epoch": 3},
        {"path": str(regularization), "kind": "regularization", "loss_weight": 0.5},
    ]
    config = config_of(tiny_sd, folder, concepts)
    whole = run(config)
    assert len({s.epoch for s in whole.of(StepFinished)}) == 3
    stopped = run(config, on_event=stop_at(4))
    assert stopped.finished.outcome == "stopped"
    resumed = run(config, resume_from=Path(stopped.finished.backup_path))
    assert losses(stopped) + losses(resumed) == losses(whole)
    assert_equal_tensors(resumed.weights, whole.weights)


@pytest.mark.full
def test_regularization_images_are_trained_with_their_weight(tiny_sd: Path, folder: Path) -> None:
    regularization = draw_folder(folder.parent / "reg", sizes=[(64, 64)] * 2)

    def ran(**changes: Any) -> Ran:
        return run(config_of(tiny_sd, folder, [{"path": str(folder)}, {"path": str(regularization), **changes}]))

    plain, regular = ran(), ran(kind="regularization")
    assert regular.of(RunStarted)[0].num_images == 7
    assert losses(regular) != losses(plain)
    assert losses(ran(kind="regularization", loss_weight=0.25)) != losses(regular)


@pytest.mark.full
def test_the_colour_behind_transparency_is_trained(tiny_sd: Path, folder: Path) -> None:
    """Only images with transparent places are encoded again for another colour."""
    from PIL import Image

    Image.new("RGBA", (64, 64), (10, 200, 30, 60)).save(folder / "clear.png")

    def ran(colour: str) -> Ran:
        return run(config_of(tiny_sd, folder, [{"path": str(folder), "background": colour}]))

    def num_entries() -> int:
        return len(list((folder.parent / "cache" / "latents").rglob("*.safetensors")))

    white = ran("white")
    before = num_entries()
    assert losses(ran("#ffffff")) == losses(white)
    assert num_entries() == before
    assert losses(ran("black")) != losses(white)
    assert num_entries() == before + 1


def test_a_run_leaves_an_index_of_its_images(tiny_sd: Path, folder: Path) -> None:
    run(config_of(tiny_sd, folder, [{"path": str(folder)}]))
    with closing(sqlite3.connect(folder.parent / "cache" / "images.sqlite")) as database:
        select = "SELECT path, name, facts FROM files JOIN folders ON folders.id = folder ORDER BY name"
        rows = [row for row in database.execute(select).fetchall() if row[1].endswith(".png")]
    assert rows == [(str(folder), f"{i:03d}.png", f"{w} {h} 0") for i, (w, h) in enumerate(SIZES)]


# -- a long scan


def test_a_run_can_be_stopped_while_it_scans(tiny_sd: Path, folder: Path) -> None:
    desk, events = CommandDesk(), []
    desk.put(Stop())
    request = RunRequest(config_of(tiny_sd, folder, [{"path": str(folder)}]), in_window=False)
    execute_guarded(request, emit=events.append, desk=desk)
    assert isinstance(events[-1], RunFinished)
    assert events[-1].outcome == "stopped"
    assert not [e for e in events if isinstance(e, PhaseChanged)], "it has not even begun to load a model"


def test_a_long_scan_is_reported_about_once_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.0, 0.4, 1.0, 1.0, 1.5, 2.5, 2.5])
    monkeypatch.setattr("trainer.data.datasets.time.monotonic", lambda: next(seconds))
    events: list[Event] = []
    checks: list[int] = []
    watch = scan_watch(events.append, lambda: checks.append(1))
    for done in (100, 200, 300, 400):
        watch(done, 1000)
    assert events == [PhaseChanged("scanning", f"{n} of 1,000 images") for n in (200, 400)]
    assert len(checks) == 4
