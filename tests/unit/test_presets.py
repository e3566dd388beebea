"""Presets: the built-in ones load cleanly and stay as they are; the user's have their own place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.config import presets
from modules.config.codec import encode
from modules.config.presets import BUILT_IN_DIR, Preset, list_presets, save_preset
from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.errors import DarkroomError
from modules.system.paths import user_presets_dir
from tests.unit.test_codec import places

BUILT_IN = sorted(BUILT_IN_DIR.glob("*/#*.json"))


@pytest.mark.parametrize("file", BUILT_IN, ids=lambda f: f.stem)
def test_a_built_in_preset_loads_without_a_word_and_is_ready_to_start(file: Path) -> None:
    loaded = Preset(file.stem, file.parent.name, file).load()
    assert loaded.problems == []
    assert not loaded.was_migrated
    assert loaded.config.general.notes.strip(), "a preset says what it is for"
    assert loaded.config.model.family == file.parent.name
    errors = {p.path for p in problems_of(loaded.config) if p.severity == "error"}
    assert errors <= {"concepts", "validation.every"}, "all that may be missing are the user's own pictures"


@pytest.mark.parametrize("file", BUILT_IN, ids=lambda f: f.stem)
def test_a_built_in_preset_is_sparse(file: Path) -> None:
    raw = json.loads(file.read_text(encoding="utf-8"))
    assert raw["darkroom_version"] == 1
    own = {p for p in places(raw) if p[0] != "concepts" and p[:2] != ("sampling", "prompts")}
    assert len(own) < len(places(encode(Config()))) / 2, "a preset says what it is about, not everything"
    assert "unknown" not in raw
    # Only the demo brings pictures of its own; everybody else's are the user's.
    assert ("concepts" in raw) == (file.stem == "#demo")


def test_nothing_else_lies_in_the_folder_of_presets() -> None:
    assert {f for f in BUILT_IN_DIR.rglob("*.json")} == set(BUILT_IN)


@pytest.fixture
def built_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of built-in presets of two families."""
    folder = tmp_path / "built in"
    for name in ("sd/#b", "sd/#a", "sd/plain", "flux/#z"):
        file = folder / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('{"darkroom_version": 1, "general": {"notes": "built in"}}')
    monkeypatch.setattr(presets, "BUILT_IN_DIR", folder)
    return folder


def test_presets_are_listed_built_in_ones_first(built_in: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    for name in ("zebra", "ant", "#not mine", "._ant"):
        own.mkdir(exist_ok=True)
        (own / f"{name}.json").write_text("{}")
    listed = list_presets(user_dir=own)
    assert [(p.group, p.name) for p in listed] == [
        ("flux", "#z"), ("sd", "#a"), ("sd", "#b"), ("yours", "ant"), ("yours", "zebra"),
    ]  # fmt: skip
    assert [p.is_built_in for p in listed] == [True, True, True, False, False]


def test_without_a_folder_of_the_user_there_are_the_built_in_ones(built_in: Path) -> None:
    assert not user_presets_dir().exists()
    assert all(p.is_built_in for p in list_presets())


@pytest.mark.parametrize("name", ["cat", "#cat", "## cat", " #cat", "# # cat"])
def test_a_preset_of_the_user_never_begins_with_the_mark(built_in: Path, name: str) -> None:
    preset = save_preset(Config(), name)
    assert preset.name == "cat"
    assert not preset.is_built_in
    assert preset.path.parent == user_presets_dir()
    assert [p.name for p in list_presets() if not p.is_built_in] == ["cat"]
    assert preset.load().config == Config()


@pytest.mark.parametrize("name", ["#a", "sd/#a", "../built in/sd/#a", "..\\#a", "/etc/#a"])
def test_a_built_in_preset_is_never_overwritten(built_in: Path, name: str) -> None:
    before = {f: f.read_bytes() for f in built_in.rglob("*.json")}
    preset = save_preset(Config(), name)
    assert preset.path.parent == user_presets_dir()
    assert not preset.name.startswith("#")
    assert {f: f.read_bytes() for f in built_in.rglob("*.json")} == before


@pytest.mark.parametrize("name", ["", "#", "  ", "# #", "...", "///", "#__", "-"])
def test_a_name_of_which_nothing_is_left_is_refused(name: str) -> None:
    """Three dots used to make a preset called "unnamed"."""
    with pytest.raises(DarkroomError, match="needs a name"):
        save_preset(Config(), name)
    assert not user_presets_dir().exists()


def test_saving_again_replaces() -> None:
    save_preset(Config(), "cat")
    edited = Config.model_validate({"training": {"epochs": 3}})
    preset = save_preset(edited, "cat")
    assert preset.load().config == edited
    assert [f.name for f in user_presets_dir().iterdir()] == ["cat.json"]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"darkroom_version": 0}'])
def test_a_broken_preset_is_listed_and_loads_with_a_problem(tmp_path: Path, content: str) -> None:
    (tmp_path / "broken.json").write_text(content)
    preset = next(p for p in list_presets(user_dir=tmp_path) if p.name == "broken")
    assert preset.load().config == Config()
