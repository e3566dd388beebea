"""The automatic choice of channels last: measured once, kept with the run, and without an effect of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from modules.config.codec import decode
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.system.devices import CPU
from modules.system.ranks import Rank
from tests.builders.configs import family_of, laid_over, small_config
from tests.builders.runs import Ran, assert_equal_tensors, run
from trainer.commands import CommandDesk
from trainer.data.datasets import datasets_of
from trainer.events import SettingChosen, StepFinished
from trainer.run import layout_choice, layout_speed, training_run
from trainer.run.layout_choice import faster_parts, measured_parts, parts_with_channels_last, why_not_measured
from trainer.run.layout_speed import Seconds, _compared, measured_seconds
from trainer.run.machine import machine_of
from trainer.run.model import load_model
from trainer.run.setup import Clocks
from trainer.run_folder.backup import BackupInfo
from trainer.run_folder.fork import LAYOUT_FILE, fork_into

AUTO = {"model": {"channels_last": "auto"}}


@dataclass
class Measurements:
    """What runs of a test find: each measures really, and then finds these seconds instead."""

    seconds: dict[str, Seconds]
    measured: list[dict[str, Seconds]]
    loaded: list[frozenset[str] | None]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Measurements:
    measurements = Measurements({}, [], [])

    def measure(*arguments: Any, **options: Any) -> Mapping[str, Seconds]:
        measurements.measured.append(measured_seconds(*arguments, **options))
        return measurements.seconds

    def load(*arguments: Any, **options: Any) -> Any:
        measurements.loaded.append(options["channels_last"])
        return load_model(*arguments, **options)

    monkeypatch.setattr(layout_choice, "measured_seconds", measure)
    monkeypatch.setattr(training_run, "load_model", load)
    return measurements


@pytest.fixture
def config(tiny_sd: Path, images: Path, tmp_path: Path) -> Config:
    untrained = {"text_encoder": {"train": False}}
    return small_config(tmp_path, model=tiny_sd, images=images, training={"epochs": 1}, parts=untrained)


def losses(ran: Ran) -> list[float | None]:
    return [s.loss for s in ran.of(StepFinished)]


def test_a_measurement_that_chooses_nothing_changes_no_bit(config: Config, found: Measurements) -> None:
    """Also not of a run that draws from torch's own generator: with dropout."""
    config = laid_over(config, {"adapter": {"dropout": 0.2}})
    plain = run(config)
    found.seconds = {"unet": (1.04, 1.0)}
    auto = run(laid_over(config, AUTO))
    [measured] = found.measured
    assert measured.keys() == {"unet"}  # latents are cached: the VAE stays as it is
    assert min(measured["unet"]) > 0
    assert found.loaded == [None, frozenset()]
    assert losses(auto) == losses(plain)
    assert_equal_tensors(auto.weights, plain.weights)
    [said] = auto.of(SettingChosen)
    assert said.summary == "Channels last is off for unet: 1 s with it, 1.04 s without."


def test_the_choice_is_remembered_and_a_resumed_run_keeps_that_of_its_start(
    config: Config, found: Measurements, tmp_path: Path
) -> None:
    two = laid_over(config, {**AUTO, "training": {"epochs": 2}})
    found.seconds = {"unet": (2.0, 1.0)}
    whole = run(two)
    first = run(laid_over(config, AUTO))
    assert len(found.measured) == 1
    assert found.loaded == [frozenset({"unet"})] * 2
    (remembered,) = (tmp_path / "home").rglob("machine_choices.json")
    remembered.unlink()
    resumed = run(two, resume_from=Path(first.finished.backup_path))
    assert len(found.measured) == 1
    assert losses(first) + losses(resumed) == losses(whole)
    assert_equal_tensors(resumed.weights, whole.weights)


def test_a_measurement_that_does_not_fit_is_no_error_and_is_not_remembered(
    config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def too_large(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(layout_choice, "measured_seconds", too_large)
    events: list[SettingChosen] = []
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    setup = SimpleNamespace(
        config=laid_over(config, AUTO),
        machine=machine_of(config.general, config.training.precision),
        backup=None,
        run_dir=run_dir,
        datasets=datasets_of(config),
        num_threads=1,
        clocks=Clocks(),
        desk=CommandDesk(),
        log=SimpleNamespace(emit=events.append),
    )
    assert parts_with_channels_last(setup) == frozenset()  # type: ignore[arg-type]
    assert events[-1].summary == "Channels last is off, because there was not enough memory to measure it."
    assert not list((tmp_path / "home").rglob("machine_choices.json"))


def test_an_encoder_that_runs_in_each_step_is_measured_too(config: Config) -> None:
    assert measured_parts(config) == ("unet",)
    assert measured_parts(laid_over(config, {"data": {"latent_cache": False}})) == ("unet", "vae")
    assert measured_parts(laid_over(config, {"training": {"trains": "vae"}})) == ("vae",)


@pytest.mark.parametrize(
    ("changes", "world_size", "reason"),
    [({}, 1, ""), ({"general": {"deterministic": True}}, 1, "deterministic"),
     ({"general": {"debug_checks": True}}, 1, "debug checks"), ({"model": {"compile": True}}, 1, "compiler"),
     ({"training": {"trains": "full"}}, 2, "whole model")],
)  # fmt: skip
def test_where_the_choice_is_off(config: Config, changes: dict[str, Any], world_size: int, reason: str) -> None:
    found = why_not_measured(laid_over(config, changes), world_size)
    assert reason in found
    assert bool(found) is bool(reason)


def test_what_is_hardly_faster_is_not_worth_other_results() -> None:
    assert faster_parts({"unet": (1.04, 1.0), "vae": (1.06, 1.0)}) == {"vae"}


@pytest.mark.parametrize("model", ["tiny_sdxl", "tiny_sd"])
def test_the_parts_run_with_the_layout_that_is_measured(
    request: pytest.FixtureRequest, config: Config, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """An SDXL with an encoder in each step, and the VAE of an SD that trains."""
    folder: Path = request.getfixturevalue(model)
    training = {"trains": "vae"} if model == "tiny_sd" else {"trains": "full"}
    tree = {"model": {"base_model": str(folder), "family": family_of(folder)}, "data": {"latent_cache": False}}
    config = laid_over(config, {**tree, "training": training})
    seen: dict[str, list[bool]] = {}

    def look(module: torch.nn.Module, _inputs: object) -> None:
        weight = next(w for w in module.parameters() if w.dim() == 4 and w.shape[1] > 1 and w.shape[2] > 1)
        seen.setdefault(type(module).__name__, []).append(weight.is_contiguous(memory_format=torch.channels_last))

    def watched(*arguments: Any, **options: Any) -> Any:
        loaded = load_model(*arguments, **options)
        for name in ("unet", "vae"):
            module = loaded.family.parts[name].module
            (module if name == "unet" else module.get_submodule("encoder")).register_forward_pre_hook(look)
        return loaded

    monkeypatch.setattr(layout_speed, "load_model", watched)
    seconds = measured_seconds(
        config,
        machine_of(config.general, config.training.precision),
        measured_parts(config),
        size=Size(64, 48),
        start_copy=None,
        clock=time.monotonic,
        check=lambda: None,
    )
    assert seconds.keys() == set(measured_parts(config))
    assert len(seen) == len(seconds)
    for layouts in seen.values():
        num_images = len(layouts) // 8
        assert layouts == [layout for _ in range(4) for layout in (False, True) for _ in range(num_images)]


def test_the_shortest_of_several_turns_counts_and_a_long_pass_is_not_repeated() -> None:
    def compared(passes: list[float]) -> tuple[Seconds, int]:
        now, taken = [0.0], iter(passes)
        layouts: list[torch.memory_format] = []

        def run_once() -> None:
            now[0] += next(taken)

        found = _compared(run_once, layouts.append, CPU, lambda: now[0], lambda: None)
        assert layouts[::2] == [torch.contiguous_format] * len(layouts[::2])
        return found, len(layouts)

    assert compared([3, 3, 2, 1, 1, 2, 2, 3]) == ((1, 1), 8)
    assert compared([3, 5]) == ((3, 5), 2)


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
    fork_into(fork, BackupInfo(backup, 1, 1, ""))
    assert json.loads((fork / LAYOUT_FILE).read_text()) == {"channels_last": ["unet"]}


@pytest.mark.parametrize(("given", "choice"), [(True, "on"), (False, "off"), ("auto", "auto")])
def test_a_switch_of_an_earlier_file_is_a_choice_now(given: object, choice: str) -> None:
    loaded = decode({"darkroom_version": 3, "model": {"channels_last": given}})
    assert not loaded.problems
    assert loaded.config.model.channels_last == choice
