"""The preset manager: its rows without Tk, and the window in one go."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from modules.config.presets import Preset, list_presets, save_preset
from modules.config.schema import Config
from modules.families.registry import FAMILIES, newest_families
from tests.ui.conftest import Window
from ui.features.presets.model import by_model, difference_rows, find_presets, for_card, needs_larger_card, preset_rows
from ui.features.presets.window import PresetComparison, Presets
from ui.forms.model import Source


def test_rows_say_what_a_preset_trains_and_on_which_card(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("[")
    built_in = {p.name: p for p in list_presets(user_dir=tmp_path) if p.is_built_in}
    one, other = built_in["#sdxl 1.0 LoRA 8 GB"], built_in["#sdxl 1.0 fine-tune 12 GB"]
    rows = preset_rows([one, other, Preset("broken", "yours", tmp_path / "broken.json")])
    assert rows[0].cells[:4] == ("Built-in", "Stable Diffusion XL", "LoRA", "8 GB")
    assert rows[1].trains == "Fine-tune"
    assert rows[2].config is None
    assert rows[2].problem
    assert find_presets(rows, "xl 12") == [rows[1]]
    assert find_presets(rows, "") == rows
    differing = {setting: (before, now) for setting, before, now in difference_rows(rows[0], rows[1])}
    assert ("LoRA", "Fine-tune") in differing.values()
    assert difference_rows(rows[0], rows[2]) == []


def test_presets_are_managed_in_the_window(open_window: Callable[..., Window]) -> None:
    save_preset(Config.model_validate({"training": {"epochs": 3}}), "mine")
    window = open_window()
    context, answers = window.app.context, window.asked.answers
    context.actions.run("manage_presets")
    [manager] = [w for w in context.root.winfo_children() if isinstance(w, Presets)]
    window.wait_until(lambda: manager.visible, "the presets")

    def names() -> list[str]:
        return [r.preset.name for r in manager.visible]

    def press(label: str, expected: Callable[[], object]) -> None:
        manager.buttons[label].invoke()
        window.wait_until(expected, label)

    manager.find.set("mine")
    assert names() == ["mine"]
    preset = manager.visible[0].preset
    context.form.rename_source(Source("mine", preset.path, "preset"))
    context.form.edit("training.epochs", 9)
    answers["ask_text"] = "mine too"
    press("Rename…", lambda: names() == ["mine too"])
    assert (context.form.source.name, context.form.is_changed) == ("mine too", True)
    answers["ask_text"] = "for faces"
    press("Describe…", lambda: manager.visible[0].notes == "for faces")
    press("Duplicate", lambda: names() == ["mine too", "mine too copy"])
    manager.table.select([0, 1])
    window.app.root.update()
    manager.buttons["Compare"].invoke()
    [comparison] = [w for w in context.root.winfo_children() if isinstance(w, PresetComparison)]
    assert comparison.differences == []
    comparison.close()
    manager.table.select([1])
    window.app.root.update()
    press("Delete", lambda: names() == ["mine too"])
    press("Undo delete", lambda: names() == ["mine too", "mine too copy"])
    manager.table.select([0, 1])
    window.app.root.update()
    press("Delete", lambda: names() == [])
    press("Undo delete", lambda: names() == ["mine too", "mine too copy"])
    manager.find.set("#demo")
    window.app.root.update()
    assert manager.buttons["Delete"].cget("state") == "disabled"
    manager.load()
    assert context.form.source.name == "#demo"


def test_presets_for_the_card_come_first_and_those_for_a_larger_one_last() -> None:
    rows = preset_rows([p for p in list_presets() if "fine-tune" in p.name or "z-image" in p.name])
    assert for_card(rows, 0) == rows
    sorted_rows = for_card(rows, 16)
    names = [row.preset.name for row in sorted_rows]
    assert {"#z-image LoRA 16 GB", "#sdxl 1.0 fine-tune 16 GB", "#sd 1.5 fine-tune 8 GB"} <= set(names[:6])
    larger = {"#z-image LoRA 24 GB", "#sdxl 1.0 fine-tune 24 GB", "#sd 1.5 fine-tune", "#anima fine-tune 24 GB"}
    larger |= {"#lumina-2 fine-tune 24 GB", "#z-image DiffusionNFT LoRA 24 GB", "#z-image DGPO LoRA 24 GB"}
    assert set(names[-len(larger) :]) == larger
    assert {row.preset.name for row in sorted_rows if needs_larger_card(row, 16)} == larger


def test_presets_of_a_model_are_next_to_each_other_the_users_first() -> None:
    presets = [p for p in list_presets() if p.group in ("sd", "sdxl", "krea2")]
    rows = by_model(for_card(preset_rows([*presets, Preset("mine", "yours", presets[0].path)]), 12))
    groups = [row.group for row in rows]
    titles = list(dict.fromkeys(groups))
    assert groups == [title for title in titles for _ in range(groups.count(title))]
    assert titles[0] == "Your presets"
    assert {"Demo", "Krea 2", "Stable Diffusion XL"} < set(titles)
    assert next(row.preset.name for row in rows if row.group == "Krea 2") == "#krea 2 LoRA 12 GB"  # the card's
    assert {row.card for row in rows if row.group == "Demo"} == {"none needed"}
    assert all(row.card for row in rows if row.preset.is_built_in)  # each states the card that it is for


def test_a_plain_lora_for_the_card_comes_before_other_methods_and_targets() -> None:
    """The list of a 16 GB card began with SD 1.5's AlignProp, the only LoRA of it that needs that much."""
    rows = for_card(preset_rows([p for p in list_presets() if p.group in ("sd", "sdxl") and not p.is_demo]), 16)
    names = [row.preset.name for row in rows]
    assert names.index("#sd 1.5 LoRA") < names.index("#sd 1.5 embedding") < names.index("#sd 1.5 AlignProp LoRA")
    assert names.index("#sdxl 1.0 LoRA 16 GB") < names.index("#sdxl 1.0 LoRA")
    made_for = rows[: names.index("#sdxl 1.0 LoRA 8 GB")]
    assert all(row.memory for row in made_for)


def test_of_equal_ones_the_newest_family_comes_first() -> None:
    rows = for_card(preset_rows([p for p in list_presets() if p.group in FAMILIES and not p.is_demo]), 8)
    first = [
        row.family for row in rows if row.preset.card_gb == 8 and row.trains == "LoRA" and "DPO" not in row.preset.name
    ]
    assert list(dict.fromkeys(first)) == [FAMILIES[n].label for n in newest_families() if FAMILIES[n].label in first]
    assert all(not spec.released or re.fullmatch(r"20\d\d-[01]\d", spec.released) for spec in FAMILIES.values())
