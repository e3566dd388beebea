"""Saving a config when the disk or the machine fails in the middle: the old or the new file is always there."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from modules.config.codec import decode, export_file, load_file, save_file
from modules.config.schema import Config
from tests.unit.test_atomic import Calls, Dead, leftovers, posix

OLD_OF_THEIRS = '{"__version": 5, "epochs": 7, "training_method": "LORA", "base_model_name": "x"}'


def config(epochs: int, names: tuple[str, ...], lists: bool) -> Config:
    tree = {
        "darkroom_version": 7,
        "training": {"epochs": epochs},
        "concepts": [{"name": n} for n in names],
        "concepts_file": "concepts.json" if lists else "",
    }
    return decode(tree).config


OLD, NEW = (7, ("a", "b")), (9, ("c",))


def state(file: Path) -> tuple[int, tuple[str, ...]]:
    loaded = load_file(file)
    assert not [p for p in loaded.problems if p.severity == "error"], loaded.problems
    return loaded.config.training.epochs, tuple(c.name for c in loaded.config.concepts)


@pytest.mark.parametrize("is_dead", [False, True])
@pytest.mark.parametrize("lists", [False, True])
def test_a_failure_at_any_write_leaves_the_old_or_the_new(tmp_path: Path, is_dead: bool, lists: bool) -> None:
    for fail_at in range(1, 200):
        file = tmp_path / str(fail_at) / "config.json"
        save_file(config(*OLD, lists), file)
        with pytest.MonkeyPatch.context() as patch:
            calls = Calls(patch, fail_at=fail_at, is_dead=is_dead)
            with contextlib.suppress(Dead, OSError):
                save_file(config(*NEW, lists), file)
        epochs, names = state(file)
        assert epochs in (OLD[0], NEW[0])
        assert names in (OLD[1], NEW[1])  # a list in a separate file is complete, too
        if epochs == NEW[0]:
            assert names == NEW[1]  # lists are written first: a config never names a missing file
        save_file(config(*NEW, lists), file)
        assert state(file) == NEW
        if not calls.has_failed:
            assert fail_at > 3
            return
    raise AssertionError("it never succeeded")


@pytest.mark.parametrize("is_dead", [False, True])
def test_the_original_of_another_program_is_never_lost(tmp_path: Path, is_dead: bool) -> None:
    for fail_at in range(1, 200):
        file = tmp_path / str(fail_at) / "old.json"
        file.parent.mkdir()
        file.write_text(OLD_OF_THEIRS)
        with pytest.MonkeyPatch.context() as patch:
            calls = Calls(patch, fail_at=fail_at, is_dead=is_dead)
            with contextlib.suppress(Dead, OSError):
                save_file(config(*NEW, False), file)
        texts = [p.read_text() for p in file.parent.iterdir() if p.suffix in (".json", ".bak")]
        assert OLD_OF_THEIRS in texts, fail_at
        if file.read_text() != OLD_OF_THEIRS:
            assert state(file) == NEW
            assert (file.parent / "old.json.bak").read_text() == OLD_OF_THEIRS
        if not is_dead:
            assert leftovers(file.parent) == []
        if not calls.has_failed:
            assert fail_at > 3
            return
    raise AssertionError("it never succeeded")


def forbidden(path: Path) -> None:
    path.chmod(0o000)


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, forbidden], ids=["folder", "empty", "forbidden"])
def test_an_unreadable_file_is_reported_and_gives_the_defaults(tmp_path: Path, make: Callable[[Path], None]) -> None:
    file = tmp_path / "config.json"
    if make is forbidden:
        file.write_text(OLD_OF_THEIRS)
    make(file)
    if make is forbidden and os.access(file, os.R_OK):
        assert load_file(file).config.training.epochs == 7  # root may read everything
        return
    loaded = load_file(file)
    assert loaded.config == Config()
    assert [(p.path, p.severity) for p in loaded.problems] == [("", "error")]
    assert str(file) in loaded.problems[0].message


@posix
@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_a_saved_config_stays_private_and_a_link_stays_a_link(tmp_path: Path, mode: int) -> None:
    """0600 became 0644, and a link to a config elsewhere became a file of its own."""
    (tmp_path / "real").mkdir()
    file, link = tmp_path / "real" / "config.json", tmp_path / "config.json"
    save_file(config(*OLD, lists=False), file)
    file.chmod(mode)
    link.symlink_to(file)
    save_file(config(*NEW, lists=False), link)
    assert link.is_symlink()
    assert state(file) == NEW
    assert stat.S_IMODE(file.stat().st_mode) == mode
    export_file(config(*OLD, lists=False), link)  # as into the folder of a run, where a link may lead anywhere
    assert not link.is_symlink()
    assert state(file) == NEW
