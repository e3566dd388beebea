"""Concepts that are data sets of the Hugging Face hub: downloaded at the start into a fake of the hub's cache."""

from __future__ import annotations

import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from modules.config.schema import Config
from modules.data.hub import HubDataset
from modules.system.errors import DarkroomError
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.runs import run
from trainer.commands import Stop
from trainer.events import DownloadProgress, RunFailed, RunFinished, StepFinished
from trainer.preflight import check
from trainer.preflight.doctor import examine

DATASET = "hf://datasets/owner/name"
COMMIT = "0123456789abcdef"


class FakeHub:
    """A repository, downloaded as huggingface_hub does: a snapshot by commit, and a reference to it."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        self.calls: list[dict[str, Any]] = []

    def snapshot_download(self, name: str, **options: Any) -> str:
        self.calls.append({"name": name, **options})
        local = Path(options["cache_dir"]) / f"datasets--{name.replace('/', '--')}"
        snapshot = local / "snapshots" / COMMIT
        files = [f for f in sorted(self.repository.rglob("*")) if f.is_file()]
        names = [f.relative_to(self.repository).as_posix() for f in files]
        wanted = [n for n in names if any(fnmatch(n, p) for p in options["allow_patterns"])]
        with options["tqdm_class"](total=0, unit="B", name="huggingface_hub.snapshot_download") as bar:
            bar.total = len(wanted)
            for file in wanted:
                (snapshot / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.repository / file, snapshot / file)
                bar.update(1)
        (local / "refs").mkdir(parents=True, exist_ok=True)
        (local / "refs" / options["revision"]).write_text(COMMIT)
        return str(snapshot)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    repository = draw_folder(tmp_path / "remote", sizes=[(64, 64)] * 2, captions=["a disc"])
    draw_folder(tmp_path / "remote" / "more", sizes=[(64, 64)] * 3, captions=["a disc"])
    (repository / "name.py").write_text("raise SystemExit")  # a loading script
    (repository / "weights.bin").write_text("x")
    fake = FakeHub(repository)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fake.snapshot_download)
    return fake


@pytest.fixture
def config(tiny_sd: Path, tmp_path: Path) -> Config:
    small = small_config(tmp_path, model=tiny_sd, images=tmp_path / "none", training={"epochs": 1})
    return laid_over(small, {"concepts": [{"path": DATASET}], "model": {"hub_cache_dir": str(tmp_path / "hub")}})


def snapshot(tmp_path: Path) -> Path:
    return tmp_path / "hub" / "datasets--owner--name" / "snapshots" / COMMIT


def severities(config: Config) -> list[str]:
    return [p.severity for p in check(config).problems if p.path == "concepts.0.path"]


def test_a_data_set_is_downloaded_trained_and_then_known(hub: FakeHub, config: Config, tmp_path: Path) -> None:
    report = check(config)
    assert severities(config) == ["info"]
    assert (report.errors, report.preview, hub.calls) == ([], None, [])
    ran = run(config)
    assert len(ran.of(StepFinished)) == 1
    assert [p.done_mb for p in ran.of(DownloadProgress)][-1:] == [1e-5], "five images with captions"
    [call] = hub.calls
    assert (call["name"], call["repo_type"], call["revision"]) == ("owner/name", "dataset", "main")
    downloaded = {p.name for p in snapshot(tmp_path).rglob("*.*")}
    assert downloaded == {f"{n:03}{suffix}" for n in range(3) for suffix in (".png", ".txt")}
    known = check(config)
    assert known.preview is not None
    assert known.preview.num_images == 2
    assert known.datasets is not None
    assert known.datasets.training.concepts[0].name == "name"
    assert examine(config).num_images == 2


def test_a_subfolder_and_a_revision(hub: FakeHub, config: Config, tmp_path: Path) -> None:
    given = laid_over(config, {"concepts": [{"path": f"{DATASET}@v1/more"}]})
    assert len(run(given).of(StepFinished)) == 2
    assert hub.calls[0]["revision"] == "v1"
    assert [p.name for p in snapshot(tmp_path).iterdir()] == ["more"]
    missing = run(laid_over(config, {"concepts": [{"path": f"{DATASET}@v1/gone"}]})).ending
    assert isinstance(missing, RunFailed)
    assert "no images and no archives" in missing.message


def test_offline_nothing_is_downloaded(hub: FakeHub, config: Config) -> None:
    offline = laid_over(config, {"model": {"offline": True}})
    assert severities(offline) == ["error"]
    assert isinstance(run(offline).ending, RunFailed)
    assert not hub.calls
    run(config)
    assert severities(offline) == []
    assert run(offline).of(StepFinished)
    assert len(hub.calls) == 1


def test_a_resumed_run_uses_the_files_that_it_has(hub: FakeHub, config: Config) -> None:
    first = run(config)
    assert isinstance(first.ending, RunFinished)
    more = laid_over(config, {"training": {"epochs": 2}})
    assert len(run(more, resume_from=Path(first.finished.backup_path)).of(StepFinished)) == 1
    assert len(hub.calls) == 1


def test_a_download_can_be_stopped(hub: FakeHub, config: Config) -> None:
    ran = run(config, on_event=lambda event, send: send(Stop()) if isinstance(event, DownloadProgress) else None)
    assert (ran.finished.outcome, ran.of(StepFinished)) == ("stopped", [])


def test_a_download_that_fails_names_what_to_do(hub: FakeHub, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise OSError("no route to host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    ending = run(config).ending
    assert isinstance(ending, RunFailed)
    assert "data set owner/name could not be downloaded" in ending.message
    assert "huggingface.co/datasets/owner/name" in ending.advice


@pytest.mark.parametrize(
    "path", ["hf://owner/name", "hf://datasets/name", f"{DATASET}/../../x", "hf://datasets/../x/y"]
)
def test_other_forms_are_refused(config: Config, path: str) -> None:
    wrong = laid_over(config, {"concepts": [{"path": path}]})
    assert severities(wrong) == ["error"]
    with pytest.raises(DarkroomError, match="not a data set"):
        examine(wrong)


def test_the_form() -> None:
    assert HubDataset.of(DATASET) == HubDataset("owner/name")
    assert HubDataset.of(f" {DATASET}/ ") == HubDataset("owner/name")
    assert HubDataset.of(f"{DATASET}@refs-x/a/b") == HubDataset("owner/name", "refs-x", "a/b")
    assert HubDataset.of("owner/name") is None


def test_a_commit_has_no_reference(tmp_path: Path) -> None:
    (tmp_path / "datasets--owner--name" / "snapshots" / COMMIT).mkdir(parents=True)
    assert HubDataset("owner/name", COMMIT).local_folder(tmp_path) is not None
    assert HubDataset("owner/name").local_folder(tmp_path) is None
