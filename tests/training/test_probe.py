"""The probe on a tiny model: real steps, its results, and nothing else that is touched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.config.codec import save_file
from modules.config.schema import Config
from modules.optim.optimizers.d_adaptation import Prodigy
from modules.settings.edit import replace_value
from modules.system.devices import Device
from modules.system.errors import DarkroomError
from tests.builders.configs import small_config
from trainer.__main__ import main
from trainer.commands import CommandDesk, Stop, StopRequested
from trainer.job import Job
from trainer.job_events import JobEvent, JobProgress
from trainer.probe import search, trial
from trainer.probe.search import ProbeRequest, probe
from trainer.probe.trial import StepMeasurement


@pytest.fixture
def config(tiny_sd: Path, images: Path, tmp_path: Path) -> Config:
    return small_config(tmp_path, model=tiny_sd, images=images, data={"text_cache": False, "latent_cache": False})


def files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


@pytest.mark.full
def test_both_searches_write_plots_and_points_and_touch_nothing_else(config: Config, tmp_path: Path) -> None:
    out, file = tmp_path / "probe", tmp_path / "config.json"
    save_file(config, file)
    arguments = ["--steps", "12", "--from", "1e-5", "--to", "1e-1", "--max-batch", "2", "--out", str(out)]
    assert main(["probe", str(file), *arguments]) == 0
    assert files(out) == {"points.json", "learning_rate.png", "batch_size.png"}
    data = json.loads((out / "points.json").read_text())
    assert [p["batch_size"] for p in data["batch"]["points"]] == [1, 2]
    assert all(p["images_per_second"] > 0 for p in data["batch"]["points"])
    assert data["batch"]["largest"] == 2
    rates = [p["rate"] for p in data["learning_rate"]["points"]]
    assert rates[0] == pytest.approx(1e-5)
    assert rates == sorted(rates)
    first = data["learning_rate"]["points"][0]
    assert first["loss"] == pytest.approx(first["untrained_loss"], abs=1e-6)  # the same draws, and no training yet
    assert not (tmp_path / "workspace").exists()
    assert not (tmp_path / "out").exists()


def test_a_batch_without_memory_ends_the_search(config: Config, tmp_path: Path, monkeypatch: Any) -> None:
    def run_one(request: Any, changed: Config, *_rest: Any) -> search.Trial:
        if changed.training.batch_size > 2:
            raise MemoryError
        return search.Trial([search_step(changed.training.batch_size)] * 3, 5_000_000_000)

    monkeypatch.setattr(search, "_trial", run_one)
    found = search.measure_batches(ProbeRequest(config, tmp_path / "out"), tmp_path / "scratch", Job(lambda _e: None))
    assert found.largest.batch_size == 2
    assert "a batch of 3 runs out of memory" in str(found)
    assert "5.0 GB" in str(found)


def test_the_memory_is_that_of_the_card_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device=None: {0: 1, 1: 2}[device.index])
    assert [trial._peak_bytes(Device(name)) for name in ("cuda:0", "cuda:1", "cpu", "mps")] == [1, 2, 0, 0]


def search_step(num_images: int) -> StepMeasurement:
    return StepMeasurement(0.5, num_images, 0.1)


def test_a_stop_takes_effect_between_steps_and_leaves_nothing(config: Config, tmp_path: Path) -> None:
    desk, seen = CommandDesk(), []

    def emit(event: JobEvent) -> None:
        if isinstance(event, JobProgress) and event.total == 12:  # the checks before report, too
            seen.append(event.done)
            desk.put(Stop())

    request = ProbeRequest(config, tmp_path / "probe", wants_batch=False, num_steps=12)
    with pytest.raises(StopRequested):
        probe(request, Job(emit, desk))
    assert seen == [1]
    assert not files(tmp_path / "probe")
    assert not (tmp_path / "workspace").exists()


def test_what_cannot_be_probed_is_said_first(config: Config, tmp_path: Path) -> None:
    job, out = Job(lambda _e: None), tmp_path / "probe"
    with pytest.raises(DarkroomError, match="no images to train on"):
        probe(ProbeRequest(replace_value(config, "concepts", ()), out), job)
    adaptive = replace_value(replace_value(config, "training.optimizer", Prodigy()), "training.learning_rate", 1.0)
    with pytest.raises(DarkroomError, match="finds its learning rate itself"):
        probe(ProbeRequest(adaptive, out), job)
    with pytest.raises(DarkroomError, match="not a range"):
        probe(ProbeRequest(config, out, wants_batch=False, lowest_rate=1.0, highest_rate=0.1), job)
    assert not list(out.glob("*.json"))
