"""The automatic choice of channels last: a rule, kept with the run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from modules.config.codec import decode
from modules.config.schema import Config
from modules.system.devices import CPU, Device
from modules.system.ranks import Rank
from tests.builders.configs import laid_over, small_config
from tests.builders.runs import Ran, assert_equal_tensors, run
from trainer.events import StepFinished
from trainer.machine_events import SettingChosen
from trainer.run import automatic_choices, loading
from trainer.run.automatic_choices import parts_in_question, parts_with_channels_last, why_off
from trainer.run.model import load_model
from trainer.run_folder.backup import BackupInfo
from trainer.run_folder.fork import COMPILE_FILE, LAYOUT_FILE, fork_into

AUTO = {"model": {"channels_last": "auto"}}
GPU = Device("cuda")


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[frozenset[str] | None]:
    """The parts with the channels innermost of each model that a run of the test loads."""
    parts: list[frozenset[str] | None] = []

    def load(*arguments: Any, **options: Any) -> Any:
        parts.append(options["channels_last"])
        return load_model(*arguments, **options)

    monkeypatch.setattr(loading, "load_model", load)
    return parts


@pytest.fixture
def config(tiny_sd: Path, images: Path, tmp_path: Path) -> Config:
    untrained = {"text_encoder": {"train": False}}
    return small_config(tmp_path, model=tiny_sd, images=images, training={"epochs": 1}, parts=untrained)


def losses(ran: Ran) -> list[float | None]:
    return [s.loss for s in ran.of(StepFinished)]


def test_a_run_on_a_cpu_is_that_without_the_setting(config: Config, loaded: list[frozenset[str] | None]) -> None:
    plain, auto = run(config), run(laid_over(config, AUTO))
    assert loaded == [None, frozenset()]
    assert losses(auto) == losses(plain)
    assert_equal_tensors(auto.weights, plain.weights)
    [said] = auto.of(SettingChosen)
    assert said.summary.startswith("Channels last is off, because ")


def test_a_resumed_run_keeps_the_choice_of_its_start(
    config: Config, loaded: list[frozenset[str] | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    two = laid_over(config, {**AUTO, "training": {"epochs": 2}})
    monkeypatch.setattr(automatic_choices, "why_off", lambda *_: "")
    whole = run(two)
    first = run(laid_over(config, AUTO))
    monkeypatch.setattr(automatic_choices, "why_off", lambda *_: "it is another machine")
    resumed = run(two, resume_from=Path(first.finished.backup_path))
    assert loaded == [frozenset({"unet"})] * 3  # latents are cached: the VAE stays as it is
    assert losses(first) + losses(resumed) == losses(whole)
    assert_equal_tensors(resumed.weights, whole.weights)


def test_an_encoder_that_runs_in_each_step_is_in_question_too(config: Config) -> None:
    assert parts_in_question(config) == {"unet"}
    assert parts_in_question(laid_over(config, {"data": {"latent_cache": False}})) == {"unet", "vae"}
    assert parts_in_question(laid_over(config, {"training": {"trains": "vae"}})) == {"vae"}


@pytest.mark.parametrize(
    ("changes", "device", "dtype", "capability", "world_size", "reason"),
    [({}, GPU, torch.bfloat16, (9, 0), 1, ""), ({}, GPU, torch.float16, (7, 0), 1, ""),
     ({}, GPU, torch.float32, (9, 0), 1, "16 bits"), ({}, GPU, torch.float16, (6, 1), 1, "tensor cores"),
     ({}, CPU, torch.bfloat16, (9, 0), 1, "NVIDIA"),
     ({"general": {"deterministic": True}}, GPU, torch.bfloat16, (9, 0), 1, "deterministic"),
     ({"model": {"compile": "on"}}, GPU, torch.bfloat16, (9, 0), 1, "compiler"),
     ({"training": {"trains": "full"}}, GPU, torch.bfloat16, (9, 0), 2, "whole model")],
)  # fmt: skip
def test_the_rule(
    config: Config,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    device: Device,
    dtype: torch.dtype,
    capability: tuple[int, int],
    world_size: int,
    reason: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.version, "hip", None)
    found = why_off(laid_over(config, changes), device, dtype, world_size)
    assert reason in found
    assert bool(found) is bool(reason)


def test_rocm_has_the_usual_layout(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert why_off(config, GPU, torch.bfloat16, 1)


def test_all_processes_use_the_choice_of_the_main_one(config: Config) -> None:
    class Second:
        rank = Rank(1, 2)

        def from_main(self, value: object) -> object:
            return frozenset({"unet"})

    setup = SimpleNamespace(config=laid_over(config, AUTO), machine=SimpleNamespace(ranks=Second()))
    assert parts_with_channels_last(setup) == frozenset({"unet"})  # type: ignore[arg-type]


def test_a_fork_has_the_layout_of_its_origin(tmp_path: Path) -> None:
    origin, fork = tmp_path / "origin", tmp_path / "fork"
    backup = origin / "backup" / "one"
    backup.mkdir(parents=True)
    fork.mkdir()
    (origin / LAYOUT_FILE).write_text(json.dumps({"channels_last": ["unet"]}))
    (origin / COMPILE_FILE).write_text("{}")
    fork_into(fork, BackupInfo(backup, 1, 1, ""))
    assert json.loads((fork / LAYOUT_FILE).read_text()) == {"channels_last": ["unet"]}
    assert (fork / COMPILE_FILE).read_text() == "{}"


@pytest.mark.parametrize(("given", "choice"), [(True, "on"), (False, "off"), ("auto", "auto")])
def test_a_switch_of_an_earlier_file_is_a_choice_now(given: object, choice: str) -> None:
    loaded = decode({"darkroom_version": 7, "model": {"channels_last": given, "compile": given}})
    assert not loaded.problems
    assert (loaded.config.model.channels_last, loaded.config.model.compile) == (choice, choice)
