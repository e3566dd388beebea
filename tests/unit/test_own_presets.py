"""Managing the user's presets: nothing is lost, and built-in ones are never changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config.own_presets import delete_preset, describe_preset, duplicate_preset, rename_preset, restore_preset
from modules.config.presets import BUILT_IN_DIR, Preset, list_presets, save_preset
from modules.config.schema import Config
from modules.system.errors import DarkroomError

CONFIG = Config.model_validate({"training": {"epochs": 7}, "general": {"notes": "old"}})


def own(folder: Path) -> list[str]:
    return [p.name for p in list_presets(user_dir=folder) if not p.is_built_in]


def test_rename_keeps_the_settings_and_never_replaces(tmp_path: Path) -> None:
    first, other = (save_preset(CONFIG, name, user_dir=tmp_path) for name in ("first", "other"))
    renamed = rename_preset(first, " # my: one ")
    assert (renamed.name, renamed.load().config.training.epochs) == ("my_ one", 7)
    assert own(tmp_path) == ["my_ one", "other"]
    with pytest.raises(DarkroomError, match="A preset named other already exists"):
        rename_preset(renamed, "other")
    with pytest.raises(DarkroomError, match="needs a name"):
        rename_preset(renamed, " . ")
    assert rename_preset(other, "other") == other
    assert rename_preset(other, "Other").name == "Other"


def test_copies_get_numbers_and_built_in_ones_are_only_copied(tmp_path: Path) -> None:
    built_in = Preset("#demo", "sd", BUILT_IN_DIR / "sd" / "#demo.json")
    before = built_in.path.read_bytes()
    copies = [duplicate_preset(built_in, user_dir=tmp_path) for _ in range(2)]
    assert [c.name for c in copies] == ["demo copy", "demo copy 2"]
    assert copies[0].load().config == built_in.load().config
    for change in (delete_preset, lambda p: rename_preset(p, "x"), lambda p: describe_preset(p, "x")):
        with pytest.raises(DarkroomError, match="built-in"):
            change(built_in)
    assert built_in.path.read_bytes() == before
    (tmp_path / "broken.json").write_text("[")
    with pytest.raises(DarkroomError, match="could not be read"):
        duplicate_preset(Preset("broken", "yours", tmp_path / "broken.json"), user_dir=tmp_path)


def test_a_description_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    preset = save_preset(CONFIG, "mine", user_dir=tmp_path)
    describe_preset(preset, "new\nlines")
    now = preset.load().config
    assert now.general.notes == "new\nlines"
    assert now.model_copy(update={"general": CONFIG.general}) == CONFIG


def test_a_deleted_preset_returns_as_it_was(tmp_path: Path) -> None:
    preset = save_preset(CONFIG, "mine", user_dir=tmp_path)
    content = preset.path.read_bytes()
    trashed = delete_preset(preset)
    assert own(tmp_path) == []
    save_preset(Config(), "mine", user_dir=tmp_path)
    again = delete_preset(preset)  # the trash keeps both
    assert trashed.kept.read_bytes() == content != again.kept.read_bytes()
    assert restore_preset(trashed).path.read_bytes() == content
    assert restore_preset(again).name == "mine 2"
    assert own(tmp_path) == ["mine", "mine 2"]
