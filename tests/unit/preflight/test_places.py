"""The places a run writes to."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from modules.config.schema import Config
from tests.builders.images import draw_folder
from tests.unit.preflight.setups import changed, errors, reported
from trainer.preflight import check, places


def test_a_file_that_will_be_replaced_is_mentioned(config: Config) -> None:
    destination = Path(config.output.destination)
    destination.parent.mkdir()
    destination.write_bytes(b"precious")
    report = check(config)
    assert [(p.path, p.severity) for p in report.problems] == [("output.destination", "info")]
    assert destination.read_bytes() == b"precious"


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

    real_stat = Path.stat

    def closed(self: Path, **kwargs: bool) -> os.stat_result:
        if self.name in ("workspace", "lora.safetensors"):
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return real_stat(self, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", closed)
        report = check(config)
    assert errors(report) == ["general.workspace_dir", "output.destination"]


def test_never_replace_is_no_problem_without_a_file(config: Config) -> None:
    assert reported(check(changed(config, output__never_replace=True))) == []


def test_a_full_disk(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    nearly = SimpleNamespace(total=2**40, used=2**40 - 2**20, free=2**20)
    monkeypatch.setattr(places.shutil, "disk_usage", lambda path: nearly)
    report = check(config)
    assert errors(report) == ["general.workspace_dir", "general.cache_dir", "output.destination"]
    assert all("the disk is full (1.0 MiB free)" in p.message for p in report.errors)


def test_a_disk_that_is_full_to_the_last_byte(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty file can still be created there: the probe has content, and it is removed again."""
    real_write = Path.write_bytes

    def cut_short(self: Path, content: bytes) -> int:
        real_write(self, content[:0])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(Path, "write_bytes", cut_short)
    report = check(config)
    assert all("No space left on device" in p.message for p in report.errors)
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
