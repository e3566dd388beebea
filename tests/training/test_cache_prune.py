"""Entries that a config does not use are shown, and removed only on request."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.config.codec import export_file
from modules.config.schema import Config
from modules.data.cache.store import CacheStore
from modules.families.kinds.conversion import convert, open_source
from modules.families.parts import files as model_files
from modules.formats.diffusers_folder import read_part
from tests.builders.configs import family_of, laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.runs import Ran
from trainer.__main__ import main
from trainer.cli import cache
from trainer.commands import CommandDesk
from trainer.events import CacheProgress
from trainer.launch import RunRequest
from trainer.run.execute import execute_guarded
from trainer.run.machine import machine_of
from trainer.run.model import encoder_identities, load_model
from trainer.run.prune import unused_by

NUM_IMAGES = 3


@pytest.fixture
def config(tiny_sd: Path, tmp_path: Path) -> Config:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * NUM_IMAGES)
    return small_config(tmp_path, model=tiny_sd, images=images, parts={"text_encoder": {"train": False}})


@pytest.fixture
def other(config: Config) -> Config:
    """A config of another resolution that shares the cache folder and the captions."""
    return laid_over(config, {"data": {"resolution_px": [96]}})


@pytest.fixture
def files(config: Config, other: Config, tmp_path: Path) -> tuple[str, str]:
    for each in (config, other):
        cached(each)
    export_file(config, tmp_path / "config.json")
    export_file(other, tmp_path / "other.json")
    return str(tmp_path / "config.json"), str(tmp_path / "other.json")


def cached(config: Config) -> Ran:
    ran = Ran()
    execute_guarded(RunRequest(config, kind="cache", in_window=False), emit=ran.events.append, desk=CommandDesk())
    assert ran.finished.outcome == "cached"
    return ran


def num_entries(config: Config) -> list[int]:
    folder = Path(config.general.cache_dir)
    return [sum(1 for _ in CacheStore(folder / kind).entries()) for kind in ("latents", "text")]


def test_without_yes_nothing_is_removed(
    config: Config, files: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", open(os.devnull))  # noqa: SIM115, PTH123 - no terminal
    capsys.readouterr()
    assert main(["cache", files[0], "--prune"]) == 0
    shown = capsys.readouterr().out
    assert f"Not in use: latents ({NUM_IMAGES}, " in shown
    assert "Nothing was removed." in shown
    assert num_entries(config) == [2 * NUM_IMAGES, NUM_IMAGES + 1]


@pytest.mark.parametrize(("answer", "is_removed"), [("y", True), ("n", False), ("", False)])
def test_on_a_terminal_the_user_is_asked(monkeypatch: pytest.MonkeyPatch, answer: str, is_removed: bool) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _question: answer)
    assert cache._confirm() == is_removed


def test_with_yes_only_the_others_are_removed(
    config: Config, other: Config, files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", files[0], "--prune", "--yes"]) == 0
    assert f"{NUM_IMAGES} entries were removed." in capsys.readouterr().out
    assert num_entries(config) == [NUM_IMAGES, NUM_IMAGES + 1]
    assert not cached(config).of(CacheProgress), "its own are still there"
    assert len(cached(other).of(CacheProgress)) == NUM_IMAGES


def test_entries_of_another_config_can_be_kept(
    config: Config, files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", files[0], "--prune", "--yes", "--keep-for", files[1]]) == 0
    assert "There are no other entries." in capsys.readouterr().out
    assert num_entries(config) == [2 * NUM_IMAGES, NUM_IMAGES + 1]


def test_a_config_to_keep_entries_for_that_cannot_be_used_is_named(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing file used to count as a config without images, and no message named it."""
    assert main(["cache", files[0], "--prune", "--yes", "--keep-for", str(tmp_path / "missing.json")]) == 2
    assert f"There is no file {tmp_path / 'missing.json'}" in capsys.readouterr().err
    other = Path(files[1])
    other.write_text(other.read_text().replace(str(tmp_path / "images"), str(tmp_path / "moved")))
    assert main(["cache", files[0], "--prune", "--yes", "--keep-for", files[1]]) == 2
    assert f"The config {other} has errors" in capsys.readouterr().err


def test_only_the_weights_of_encoders_are_read(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prune used to load the whole model."""
    cached(config)
    read: list[str] = []

    def noted(folder: Path, name: str, kind: Any, dtype: torch.dtype, **options: Any) -> Any:
        read.append(name)
        return read_part(folder, name, kind, dtype, **options)

    monkeypatch.setattr(model_files, "read_part", noted)
    assert not unused_by([config]).entries
    assert sorted(read) == ["text_encoder", "vae"]
    read.clear()
    assert not unused_by([laid_over(config, {"data": {"text_cache": False}})]).entries
    assert read == ["vae"]


@pytest.mark.parametrize("form", ["folder", "single file"])
@pytest.mark.parametrize("trains", ["adapter", "full"])
def test_the_keys_are_those_of_a_run(any_model: Path, form: str, trains: str, config: Config, tmp_path: Path) -> None:
    """The encoders have the same identities, although the rest of the model is not read."""
    model = any_model
    if form == "single file":
        model = tmp_path / "model.safetensors"
        convert(open_source(any_model), model, "single", dtype=None, created=datetime(2026, 1, 1))
    chosen = {"family": family_of(any_model), "base_model": str(model)}
    untrained = {f"text_encoder{n}": {"train": False} for n in ("", "_2")}
    config = laid_over(config, {"model": chosen, "training": {"trains": trains}, "parts": untrained})
    machine = machine_of(config.general, config.training.precision)
    loaded = load_model(config, machine)
    loaded.placement.close()
    assert encoder_identities(config, machine) == loaded.identities
    assert loaded.identities.images.partition("|")[0]


def test_a_cache_that_a_config_does_not_use_is_left_alone(config: Config) -> None:
    """With a trained text encoder nothing is known of the text embeddings that other runs have cached."""
    cached(config)
    assert not unused_by([laid_over(config, {"parts": {"text_encoder": {"train": True}}})]).entries


def test_what_a_killed_run_left_is_found_once_it_is_old(config: Config) -> None:
    cached(config)
    fresh, old = (Path(config.general.cache_dir) / "latents" / "aa" / name for name in (".aa1.1", ".aa2.2"))
    fresh.parent.mkdir(exist_ok=True)
    for file in (fresh, old):
        file.write_bytes(b"half")
    os.utime(old, (1, 1))
    unused = unused_by([config])
    assert unused.summary == "files of killed runs (1, 0.0 kB)"
    assert unused.remove() == 1
    assert (fresh.exists(), old.exists()) == (True, False)


def test_the_caches_of_a_config_in_memory_cannot_be_pruned(config: Config, tmp_path: Path) -> None:
    export_file(laid_over(config, {"data": {"cache_location": "memory"}}), tmp_path / "memory.json")
    assert main(["cache", str(tmp_path / "memory.json"), "--prune"]) == 2


def test_nothing_is_pruned_while_images_cannot_be_found(
    config: Config, files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a drive that is not mounted, say: all entries would look unused."""
    before = num_entries(config)
    (tmp_path / "images").rename(tmp_path / "elsewhere")
    for _ in range(2):
        assert main(["cache", files[0], "--prune", "--yes"]) == 2
        assert f"The config {files[0]} has errors" in capsys.readouterr().err
        assert num_entries(config) == before
        (tmp_path / "images").mkdir(exist_ok=True)  # then the folder is there, but empty
