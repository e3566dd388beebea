"""Concepts and samples that an OneTrainer config only names: found, read, or missed by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from modules.config import list_files
from modules.config.codec import decode, load_file
from tests.unit.test_migrations import FIXTURES, OLDER


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program's root without any files of the user in it."""
    root = tmp_path / "program"
    root.mkdir()
    monkeypatch.setattr(list_files, "PROGRAM_ROOT", root)
    return root


@pytest.fixture
def onetrainer(tmp_path: Path) -> Path:
    """A folder as OneTrainer keeps it: the lists in folders beside the one of the configs."""
    folder = tmp_path / "OneTrainer"
    (folder / "training_configs" / "SD1.5").mkdir(parents=True)
    for kind in ("concepts", "samples"):
        (folder / f"training_{kind}").mkdir()
        shutil.copy(FIXTURES / f"onetrainer_{kind}.json", folder / f"training_{kind}" / f"{kind}.json")
    return folder


def write(file: Path, **keys: Any) -> Path:
    file.write_text(json.dumps({**OLDER, **keys}))
    return file


@pytest.mark.parametrize("place", ["", "training_configs", "training_configs/SD1.5"])
def test_lists_are_found_from_where_the_config_lies(onetrainer: Path, place: str) -> None:
    loaded = load_file(write(onetrainer / place / "cat.json"))
    inlined = decode(
        {**OLDER, **{k: json.loads((FIXTURES / f"onetrainer_{k}.json").read_text()) for k in ("concepts", "samples")}}
    )
    assert loaded.config == inlined.config
    assert [c.name for c in loaded.config.concepts] == ["cat", "held out", "class"]
    assert len(loaded.config.sampling.prompts) == 2
    read = [p.message for p in loaded.problems if "read from" in p.message]
    assert len(read) == 2
    assert str(onetrainer / "training_concepts" / "concepts.json") in read[0]


def test_the_file_next_to_the_config_comes_first(onetrainer: Path) -> None:
    nearer = onetrainer / "training_configs" / "training_concepts"
    nearer.mkdir()
    (nearer / "concepts.json").write_text('[{"path": "nearer"}]')
    loaded = load_file(write(onetrainer / "training_configs" / "cat.json"))
    assert [c.path for c in loaded.config.concepts] == ["nearer"]


def test_the_program_s_root_is_looked_at_last(tmp_path: Path, root: Path) -> None:
    (root / "training_concepts").mkdir()
    (root / "training_concepts" / "concepts.json").write_text('[{"path": "root"}]')
    folder = tmp_path / "a" / "b" / "c" / "d" / "e"
    folder.mkdir(parents=True)
    assert [c.path for c in load_file(write(folder / "cat.json")).config.concepts] == ["root"]


def test_three_folders_up_and_no_further(onetrainer: Path) -> None:
    for depth, is_found in ((3, True), (4, False)):
        folder = onetrainer.joinpath(*"abcd"[:depth])
        folder.mkdir(parents=True, exist_ok=True)
        assert bool(load_file(write(folder / "cat.json")).config.concepts) == is_found


def test_a_full_path_is_taken_as_it_is(onetrainer: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "my concepts.json"
    elsewhere.write_text('[{"path": "mine"}]')
    loaded = load_file(write(onetrainer / "cat.json", concept_file_name=str(elsewhere)))
    assert [c.path for c in loaded.config.concepts] == ["mine"]


def test_lists_in_the_config_win(onetrainer: Path) -> None:
    loaded = load_file(write(onetrainer / "cat.json", concepts=[], samples=[{"prompt": "inline"}]))
    assert loaded.config.concepts == ()
    assert [p.prompt for p in loaded.config.sampling.prompts] == ["inline"]


def test_a_missing_file_is_named_with_where_it_was_looked_for(tmp_path: Path, root: Path) -> None:
    folder = tmp_path / "alone" / "configs"
    folder.mkdir(parents=True)
    loaded = load_file(write(folder / "cat.json"))
    assert loaded.config.concepts == ()
    missing = [p for p in loaded.problems if "not found" in p.message]
    assert [(p.path, p.severity) for p in missing] == [("concepts", "warning"), ("sampling.prompts", "warning")]
    assert "training_concepts/concepts.json" in missing[0].message
    for place in (folder, folder.parent, root):
        assert str(place / "training_concepts") in missing[0].message
    assert missing[0].advice


@pytest.mark.parametrize("content", [b"", b"{}", b"3", b"[", b"\xff\xfe\x00", b"[[[[" * 50_000])
def test_a_file_that_holds_no_list_is_named(onetrainer: Path, content: bytes) -> None:
    file = onetrainer / "training_concepts" / "concepts.json"
    file.write_bytes(content)
    loaded = load_file(write(onetrainer / "cat.json"))
    assert loaded.config.concepts == ()
    assert [p.severity for p in loaded.problems if str(file) in p.message] == ["warning"]
    assert len(loaded.config.sampling.prompts) == 2


def test_a_list_with_nonsense_in_it(onetrainer: Path) -> None:
    file = onetrainer / "training_concepts" / "concepts.json"
    file.write_text('[5, {"path": "a", "balancing": "lots"}, null]')
    assert [c.path for c in load_file(write(onetrainer / "cat.json")).config.concepts] == ["a"]


@pytest.mark.parametrize("name", [None, "", "  ", 5, ["a"], ".", "x" * 5000, "a\x00b"])
def test_a_name_that_is_none(onetrainer: Path, name: Any) -> None:
    loaded = load_file(write(onetrainer / "cat.json", concept_file_name=name))
    assert loaded.config.concepts == ()
    assert len(loaded.config.sampling.prompts) == 2


def test_a_config_of_ours_names_no_lists(onetrainer: Path) -> None:
    file = onetrainer / "ours.json"
    file.write_text('{"darkroom_version": 1, "concept_file_name": "training_concepts/concepts.json"}')
    assert load_file(file).config.concepts == ()
