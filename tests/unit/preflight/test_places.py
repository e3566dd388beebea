"""The places a run writes to."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

from modules.config.schema import Config
from modules.system.paths import PROGRAM_ROOT
from tests.builders.images import draw_folder
from tests.unit.preflight.setups import changed, errors, reported
from trainer.preflight import check, places


def test_a_file_of_another_program_is_a_warning_and_is_kept(config: Config) -> None:
    destination = Path(config.output.destination)
    destination.parent.mkdir()
    destination.write_bytes(b"precious")
    [problem] = check(config).problems
    assert (problem.path, problem.severity, problem.remedy) == ("output.destination", "warning", "destination")
    assert "Darkroom did not write it. It is kept" in problem.message
    assert str(destination.with_name("lora-2.safetensors")) in problem.message
    [problem] = check(config, replaces=True).problems
    assert (problem.severity, problem.remedy) == ("warning", "")
    assert "It will be replaced" in problem.message
    assert destination.read_bytes() == b"precious"


def test_a_file_that_this_program_wrote_is_mentioned(config: Config) -> None:
    destination = Path(config.output.destination)
    destination.parent.mkdir()
    save_file({"a": np.zeros(1)}, destination, {"software": "Darkroom"})
    assert [(p.severity, p.remedy) for p in check(config).problems] == [("info", "destination")]


@pytest.mark.parametrize("beside", ["lora.yaml", "lora_embeddings"])
def test_files_beside_the_result_are_kept_too(config: Config, beside: str) -> None:
    place = Path(config.output.destination).with_name(beside)
    place.mkdir(parents=True)
    [problem] = check(config).problems
    assert problem.message.startswith(f"{place} exists already")


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize(
    "path",
    ["model.base_model", "parts.vae.file", "adapter.start_from", "embeddings.words.0.file", "concepts.0.captions_file"],
)
def test_no_result_is_written_over_what_the_run_reads(
    config: Config, tmp_path: Path, path: str, replaces: bool
) -> None:
    """Also by another name of the file."""
    source = tmp_path / "source.safetensors"
    save_file({"a": np.zeros(1)}, source, {"software": "Darkroom"})
    link = Path(config.output.destination)
    link.parent.mkdir()
    link.symlink_to(source)
    if path == "embeddings.words.0.file":
        config = changed(config, embeddings__words=[{"placeholder": "zog", "file": str(source)}])
    else:
        config = changed(config, **{path.replace(".", "__"): str(source)})
    problems = [p for p in check(config, replaces=replaces).errors if p.path == "output.destination"]
    assert [f"({path}: {source})" in p.message for p in problems] == [True]


def test_no_result_is_written_into_the_base_model(config: Config) -> None:
    part = Path(config.model.base_model) / "unet" / "diffusion_pytorch_model.safetensors"
    problems = check(changed(config, output__destination=str(part)), replaces=True).errors
    assert [p.path for p in problems] == ["output.destination"]


def test_folders_that_are_not_writable_or_not_readable(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated, because the tests may run as root, who has all permissions."""
    real_write = Path.write_bytes

    def refuse(self: Path, content: bytes) -> int:
        if ".darkroom-probe" in self.name:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real_write(self, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", refuse)
        report = check(config)
    assert errors(report) == ["general.workspace_dir", "general.cache_dir", "output.destination"]
    assert all("Read-only file system" in p.message for p in report.errors)

    entry = Path(config.general.cache_dir) / "latents" / "ab" / f"ab{'0' * 38}.safetensors"
    entry.parent.mkdir(parents=True)
    entry.write_bytes(b"x")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", refuse)
        report = check(config)
    assert errors(report) == ["general.workspace_dir", "output.destination"], "a filled cache is read"
    [warning] = [p for p in report.problems if p.path == "general.cache_dir"]
    assert (warning.severity, "Read-only file system" in warning.message) == ("warning", True)

    real_stat = Path.stat

    def closed(self: Path, **kwargs: bool) -> os.stat_result:
        if self.name in ("workspace", "lora.safetensors"):
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return real_stat(self, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", closed)
        report = check(config)
    assert errors(report) == ["general.workspace_dir", "output.destination"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has backslashes")
def test_backslashes_separate_no_folders_here(config: Config) -> None:
    """They became part of a name in the program's folder."""
    [error] = check(changed(config, output__destination="models\\a.safetensors")).errors
    assert error.path == "output.destination"
    assert "folders are separated by / here, not by \\." in error.message


def test_never_replace_is_no_problem_without_a_file(config: Config) -> None:
    assert reported(check(changed(config, output__never_replace=True))) == []


def test_a_full_disk(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    nearly = SimpleNamespace(total=2**40, used=2**40 - 2**20, free=2**20)
    monkeypatch.setattr(places.shutil, "disk_usage", lambda path: nearly)
    report = check(config)
    assert errors(report) == ["general.workspace_dir", "general.cache_dir", "output.destination"]
    assert all("the disk is full (1.0 MB free)" in p.message for p in report.errors)


def test_a_disk_that_is_full_to_the_last_byte(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty file can still be created there: the probe has content, and it is removed again."""
    real_write = Path.write_bytes

    def cut_short(self: Path, content: bytes) -> int:
        real_write(self, content[:0])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(Path, "write_bytes", cut_short)
    report = check(config)
    assert all("the disk is full" in p.message for p in report.errors)
    assert all(p.remedy == "space" for p in report.errors)
    assert len(report.errors) == 3
    assert sorted(tmp_path.rglob("*")) == before


# -- nested folders


@pytest.mark.parametrize(
    ("workspace", "cache", "is_reported"),
    [
        ("a", "a", True),
        ("a", "a/cache", True),
        ("a/run", "a", True),
        ("a/../b", "b/c", True),
        ("a", "a-cache", False),
        ("a/run", "a/cache", False),
    ],
)
def test_the_cache_and_the_workspace(
    config: Config, tmp_path: Path, workspace: str, cache: str, is_reported: bool
) -> None:
    changed_config = changed(
        config, general__workspace_dir=str(tmp_path / workspace), general__cache_dir=str(tmp_path / cache)
    )
    assert reported(check(changed_config)) == ([("general.cache_dir", "warning")] if is_reported else [])


@pytest.mark.parametrize(
    ("path", "below"),
    [
        ("general.workspace_dir", "run"),
        ("general.cache_dir", "cache"),
        ("output.destination", "lora.safetensors"),
        ("general.workspace_dir", ""),
    ],
)
def test_nothing_is_written_among_the_images(config: Config, tmp_path: Path, path: str, below: str) -> None:
    folder = draw_folder(tmp_path / "mine", sizes=[(64, 64)] * 2)
    inside = changed(config, concepts__0__path=str(folder), **{path.replace(".", "__"): str(folder / below)})
    assert reported(check(inside)) == [(path, "warning")]
    switched_off = [{"path": str(folder), "enabled": False}, config.concepts[0].model_dump()]
    assert reported(check(changed(inside, concepts=switched_off))) == []


@pytest.mark.skipif(os.name == "nt", reason="Windows has drives")
@pytest.mark.parametrize("name", ["D:/loras/lora.safetensors", r"c:\loras\lora.safetensors"])
def test_a_path_of_windows_is_no_folder_here(config: Config, name: str) -> None:
    """A result of a config from Windows was written to a folder "D:" inside of the program's folder."""
    given = changed(config, output__destination=name, general__workspace_dir="E:/ws", general__cache_dir="F:\\cache")
    report = check(given)
    assert sorted(errors(report)) == ["general.cache_dir", "general.workspace_dir", "output.destination"]
    [message] = [p.message for p in report.errors if p.path == "output.destination"]
    assert message == f"{name} cannot be written: {name[:2]} is a drive of Windows, which this machine does not have."
    assert not list(PROGRAM_ROOT.glob("?:*"))
