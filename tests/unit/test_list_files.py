"""Concepts and samples in separate files: found, read, or reported as missing; written back in place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from modules.config import list_files
from modules.config.codec import (
    UnconfirmedListError,
    decode,
    export_file,
    lists_to_confirm,
    load_file,
    pack_lists,
    save_file,
)
from modules.config.list_files import LISTS, ListKind
from modules.config.schema import Config
from modules.settings.edit import set_path
from tests.unit.test_migrations import FIXTURES, OLDER


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program root without any files of the user."""
    root = tmp_path / "program"
    root.mkdir()
    monkeypatch.setattr(list_files, "PROGRAM_ROOT", root)
    return root


@pytest.fixture
def onetrainer(tmp_path: Path) -> Path:
    """A folder with OneTrainer's layout: the lists are in folders beside that of the configs."""
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
    assert pack_lists(loaded.config) == pack_lists(inlined.config)
    named = loaded.config.concepts_file, loaded.config.sampling.prompts_file
    folder = onetrainer if place else Path()  # outside the config's folder the whole path is needed
    assert named == (
        str(folder / "training_concepts" / "concepts.json"),
        str(folder / "training_samples" / "samples.json"),
    )
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


def test_the_program_root_is_searched_last(tmp_path: Path, root: Path) -> None:
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


def test_a_full_path_is_used_as_it_is(onetrainer: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "my concepts.json"
    elsewhere.write_text('[{"path": "mine"}]')
    loaded = load_file(write(onetrainer / "cat.json", concept_file_name=str(elsewhere)))
    assert [c.path for c in loaded.config.concepts] == ["mine"]


def test_lists_in_the_config_win(onetrainer: Path) -> None:
    loaded = load_file(write(onetrainer / "cat.json", concepts=[], samples=[{"prompt": "inline"}]))
    assert loaded.config.concepts == ()
    assert [p.prompt for p in loaded.config.sampling.prompts] == ["inline"]


def test_a_missing_file_is_reported_with_the_searched_folders(tmp_path: Path, root: Path) -> None:
    folder = tmp_path / "alone" / "configs"
    folder.mkdir(parents=True)
    loaded = load_file(write(folder / "cat.json"))
    assert loaded.config.concepts == ()
    missing = [p for p in loaded.problems if "not found" in p.message]
    assert [(p.path, p.severity) for p in missing] == [("concepts", "warning"), ("sampling.prompts", "warning")]
    assert "training_concepts/concepts.json" in missing[0].message
    assert f"was not found in {folder}, the folders above it or {root}." in missing[0].message
    assert missing[0].advice


@pytest.mark.parametrize("content", [b"", b"{}", b"3", b"[", b"\xff\xfe\x00", b"[[[[" * 50_000])
def test_a_file_without_a_list_is_reported(onetrainer: Path, content: bytes) -> None:
    file = onetrainer / "training_concepts" / "concepts.json"
    file.write_bytes(content)
    loaded = load_file(write(onetrainer / "cat.json"))
    assert loaded.config.concepts == ()
    assert [p.severity for p in loaded.problems if str(file) in p.message] == ["warning"]
    assert len(loaded.config.sampling.prompts) == 2


def test_a_list_with_invalid_entries(onetrainer: Path) -> None:
    file = onetrainer / "training_concepts" / "concepts.json"
    file.write_text('[5, {"path": "a", "balancing": "lots"}, null]')
    assert [c.path for c in load_file(write(onetrainer / "cat.json")).config.concepts] == ["a"]


@pytest.mark.parametrize("name", [None, "", "  ", 5, ["a"], ".", "x" * 5000, "a\x00b"])
def test_an_impossible_name(onetrainer: Path, name: Any) -> None:
    loaded = load_file(write(onetrainer / "cat.json", concept_file_name=name))
    assert loaded.config.concepts == ()
    assert len(loaded.config.sampling.prompts) == 2


CONFIG = Config.model_validate(
    {
        "concepts": [{"path": "a", "repeats": 2.5}, {"path": "b", "image": {"flip": "random"}}],
        "sampling": {"prompts": [{"prompt": "a cat"}]},
    }
)
APART = {"concepts_file": "lists/cats.json", "sampling": {"prompts_file": "samples.json"}}


def apart() -> Config:
    """The same config, its lists in files beside it."""
    tree = CONFIG.model_dump()
    return Config.model_validate({**tree, **APART, "sampling": {**tree["sampling"], **APART["sampling"]}})


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_lists_inside_stay_inside(tmp_path: Path) -> None:
    save_file(CONFIG, tmp_path / "c.json")
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["c.json"]
    assert load_file(tmp_path / "c.json").config == CONFIG


def test_lists_in_files_stay_in_files(tmp_path: Path) -> None:
    save_file(apart(), tmp_path / "c.json")
    assert "concepts" not in read(tmp_path / "c.json")
    assert "prompts" not in read(tmp_path / "c.json")["sampling"]
    assert read(tmp_path / "lists" / "cats.json")["darkroom_concepts"] == 2
    assert read(tmp_path / "samples.json")["samples"][0]["prompt"] == "a cat"
    loaded = load_file(tmp_path / "c.json")
    assert loaded.config == apart()
    assert loaded.problems == []


def test_two_configs_share_a_list(tmp_path: Path) -> None:
    save_file(apart(), tmp_path / "one.json")
    other = apart().model_copy(update={"concepts": apart().concepts[:1]})
    save_file(other, tmp_path / "two.json")
    assert load_file(tmp_path / "one.json").config == other
    assert not list(tmp_path.rglob("*.bak*"))  # our own lists are no older files


def test_an_export_holds_everything(tmp_path: Path) -> None:
    export_file(apart(), tmp_path / "all.json")
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["all.json"]
    assert load_file(tmp_path / "all.json").config == CONFIG == pack_lists(apart())


def test_a_list_inside_wins_over_the_file_that_is_named(tmp_path: Path) -> None:
    """A run's own config has both: opening and saving it must not write into the list others share."""
    save_file(apart(), tmp_path / "c.json")
    tree = read(tmp_path / "c.json")
    (tmp_path / "c.json").write_text(json.dumps({**tree, "concepts": [{"path": "inside"}]}))
    config = load_file(tmp_path / "c.json").config
    assert ([c.path for c in config.concepts], config.concepts_file) == (["inside"], "")
    assert config.sampling == apart().sampling


def test_a_bare_onetrainer_list_is_read_and_kept_when_ours_is_written(tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    theirs = tmp_path / "lists" / "cats.json"
    original = '[{"path": "a", "repeats": 3}, {"path": "b", "validation_concept": true}]'
    theirs.write_text(original)
    (tmp_path / "c.json").write_text(json.dumps({"darkroom_version": 7, "concepts_file": "lists/cats.json"}))
    config = load_file(tmp_path / "c.json").config
    assert [(c.path, c.repeats, c.kind) for c in config.concepts] == [("a", 3.0, "training"), ("b", 1.0, "validation")]
    save_file(config, tmp_path / "c.json", confirmed=[theirs])
    assert theirs.with_name("cats.json.bak").read_text() == original
    assert load_file(tmp_path / "c.json").config.concepts == config.concepts


def test_an_onetrainer_config_reads_a_list_of_ours(onetrainer: Path) -> None:
    file = onetrainer / "training_concepts" / "concepts.json"
    file.write_text(json.dumps({"darkroom_concepts": 1, "concepts": [{"path": "ours", "repeats": 2}]}))
    loaded = load_file(write(onetrainer / "cat.json"))
    assert [(c.path, c.repeats) for c in loaded.config.concepts] == [("ours", 2.0)]
    save_file(loaded.config, onetrainer / "cat.json", confirmed=[onetrainer / "training_samples" / "samples.json"])
    assert load_file(onetrainer / "cat.json").config == loaded.config


def test_a_list_that_is_emptied_is_kept(tmp_path: Path) -> None:
    """As after a load while the list's disk was not mounted."""
    save_file(apart(), tmp_path / "c.json")
    before = (tmp_path / "lists" / "cats.json").read_text()
    save_file(apart().model_copy(update={"concepts": ()}), tmp_path / "c.json")
    assert (tmp_path / "lists" / "cats.json.bak").read_text() == before


@pytest.mark.parametrize(
    "content", ["{}", "[", "3", '{"darkroom_concepts": 2}', '{"darkroom_concepts": 2, "concepts": 5}']
)
def test_a_named_file_without_a_list_is_reported(tmp_path: Path, content: str) -> None:
    save_file(apart(), tmp_path / "c.json")
    (tmp_path / "lists" / "cats.json").write_text(content)
    loaded = load_file(tmp_path / "c.json")
    assert (loaded.config.concepts, loaded.config.concepts_file) == ((), "lists/cats.json")
    assert [(p.path, p.severity) for p in loaded.problems] == [("concepts", "warning")]


def test_problems_in_a_list_file_are_reported_by_path(tmp_path: Path) -> None:
    save_file(apart(), tmp_path / "c.json")
    entries = [{"path": "a", "repeats": -1, "telepathy": 3}]
    (tmp_path / "lists" / "cats.json").write_text(json.dumps({"darkroom_concepts": 3, "concepts": entries}))
    loaded = load_file(tmp_path / "c.json")
    assert [p.path for p in loaded.problems] == ["concepts", "concepts.0.telepathy", "concepts.0.repeats"]
    assert loaded.config.unknown == {"concepts.0.telepathy": 3}


@pytest.mark.parametrize("name", ["c.json", "a\x00b", "samples.json"])
def test_a_name_that_cannot_be_written_to_is_refused(tmp_path: Path, name: str) -> None:
    """The config's own file and that of the other list among them: one would overwrite the other."""
    with pytest.raises(OSError, match="cannot be used as the file for the"):
        save_file(apart().model_copy(update={"concepts_file": name}), tmp_path / "c.json")
    assert not [p for p in tmp_path.iterdir() if p.is_file()]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("../shared.json", None),
        ("../../../../etc/passwd", None),
        ("lists/../../shared.json", '{"darkroom_concepts": 2, "concepts": []}'),
        ("link/cats.json", None),
        ("workflow.json", '{"nodes": []}'),
        ("notes.txt", "my notes"),
        ("theirs.json", '[{"path": "a"}]'),
    ],
)
@pytest.mark.parametrize("kind", LISTS, ids=lambda kind: kind.name)
def test_a_list_is_written_elsewhere_or_over_other_files_only_after_the_user_confirmed(
    tmp_path: Path, kind: ListKind, name: str, content: str | None
) -> None:
    """The name comes with the config, which anybody may have made."""
    folder, outside = tmp_path / "a" / "b", tmp_path / "outside"
    folder.mkdir(parents=True)
    outside.mkdir()
    (folder / "link").symlink_to(outside)
    name = name.replace("../../../../etc/passwd", str(outside / "passwd"))
    place = folder / name
    if content is not None:
        (folder / "lists").mkdir()
        place.write_text(content)
    before = sorted(tmp_path.rglob("*"))
    config, problems = set_path(CONFIG, kind.name_path, name)
    assert problems == []
    with pytest.raises(UnconfirmedListError, match=f"The settings keep the {kind.name} in"):
        save_file(config, folder / "c.json")
    assert sorted(tmp_path.rglob("*")) == before
    assert content is None or place.read_text() == content
    [found] = lists_to_confirm(config, folder / "c.json")
    save_file(config, folder / "c.json", confirmed=[found.path])
    assert read(place)[kind.version_key] == 2
