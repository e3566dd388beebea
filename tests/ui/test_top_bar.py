"""The top bar: source, presets, loading and saving, the three choices."""

from __future__ import annotations

import json
import tkinter as tk
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from modules.config import presets
from modules.config.presets import save_preset
from modules.config.schema import Config
from modules.families.registry import FAMILIES
from modules.families.sd.spec import SD
from tests.ui.conftest import Window
from tests.ui.driving import pick
from tests.ui.fake_engine import started, step
from trainer.events import RunFinished
from ui.features.presets.model import preset_groups
from ui.features.presets.window import PresetList
from ui.forms.model import Source
from ui.loop.run_state import RunState
from ui.widgets.menu import break_into_columns, is_line, keep_on_screen, make_menu
from ui.widgets.theme import Theme


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of built-in presets in two families, one of which has no label."""
    folder = tmp_path / "training_presets"
    for family, name, epochs in (("sd", "#one", 11), ("sd", "#two", 12), ("zz", "#three", 13)):
        (folder / family).mkdir(parents=True, exist_ok=True)
        tree = {"darkroom_version": 7, "general": {"notes": f"About {name}."}, "training": {"epochs": epochs}}
        (folder / family / f"{name}.json").write_text(json.dumps(tree), encoding="utf-8")
    monkeypatch.setattr(presets, "BUILT_IN_DIR", folder)
    return folder


def entries(menu: tk.Menu) -> list[str]:
    last = menu.index("end")
    return [
        "---" if is_line(menu, i) else str(menu.entrycget(i, "label")).strip()
        for i in range(0 if last is None else last + 1)
    ]


def label_of(window: Window, action: str) -> str:
    return window.app.context.actions[action].label


def submenu(menu: tk.Menu, label: str) -> tk.Menu:
    return menu.nametowidget(menu.entrycget(entries(menu).index(label), "menu"))


def test_the_menu_has_the_users_presets_then_each_family_then_recent_files(
    shipped: Path, open_window: Callable[..., Window], tmp_path: Path
) -> None:
    window = open_window()
    save_preset(Config(), "mine")
    window.app.preferences.note_file(tmp_path / "last.json")
    menu = window.app.shell.top_bar.make_menu()
    actions = (
        "other_family",
        "which_method",
        "manage_presets",
        "import_presets",
        "differences",
        "json",
        "machines",
        "web_page",
        "tokens",
    )
    assert entries(menu) == [
        label_of(window, "find_preset"), "---", "Your presets", SD.label, "zz", "---", "Recent files", "---",
        *(label_of(window, name) for name in actions),
    ]  # fmt: skip
    assert entries(submenu(menu, "Your presets")) == ["mine"]
    assert entries(submenu(menu, "Recent files")) == ["last.json"]
    of_sd = submenu(menu, SD.label)
    assert entries(of_sd) == ["LoRA", "#one", "#two"]
    of_sd.invoke(2)
    window.settle()
    assert window.app.form.config.training.epochs == 12
    bar = window.app.shell.top_bar
    assert bar.preset_button.cget("text").startswith("#two  ")
    assert bar._caption.cget("text") == "Preset"
    assert "About #two." in bar._describe_source()


def test_presets_are_listed_with_plain_loras_first_and_methods_last() -> None:
    groups = preset_groups(presets.list_presets())
    assert [g.title for g in groups] == ["Demo", *(family.label for family in FAMILIES.values())]
    assert groups[0].presets[0].name == "#demo"
    assert "#demo flow" in {preset.name for preset in groups[0].presets}
    for group, first in ((groups[1], "#sd 1.5 LoRA"), (groups[2], "#sdxl 1.0 LoRA")):
        headings = [heading for heading, _ in group.parts]
        assert headings[0] == "LoRA"
        assert headings[-1] == "Rewards and preferences"
        assert group.presets[0].name == first
        methods = {p.name for p in group.parts[-1][1]}
        assert all("LoRA" in name for name in methods)
        assert len(methods) == 8
    assert sum(len(g.presets) for g in groups) == len(presets.list_presets())


def test_a_menu_never_leaves_the_screen(root: tk.Tk, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[bool] = []
    menu = make_menu(root, Theme("dark"))
    for number in range(40):
        menu.add_command(label=f"Preset {number}")
    menu.update_idletasks()
    monkeypatch.setattr(tk.Menu, "winfo_screenheight", lambda _menu: 600)
    keep_on_screen(menu, partial(opened.append, True))
    menu.update_idletasks()
    assert 300 < menu.winfo_reqheight() <= 600
    assert entries(menu)[-1] == "More…"
    menu.invoke("end")
    assert opened


def test_a_menu_higher_than_the_screen_has_columns(root: tk.Tk, monkeypatch: pytest.MonkeyPatch) -> None:
    menu = make_menu(root, Theme("dark"))
    for number in range(40):
        if number == 24:
            menu.add_separator()
        menu.add_command(label=f"Preset {number}")
    monkeypatch.setattr(tk.Menu, "winfo_screenheight", lambda _menu: 700)
    break_into_columns(menu)
    menu.update_idletasks()
    assert menu.winfo_reqheight() <= 700
    breaks = [n for n in range(41) if not is_line(menu, n) and int(menu.entrycget(n, "columnbreak"))]
    assert [menu.entrycget(n, "label") for n in breaks] == ["Preset 24"]


def test_the_list_of_presets_is_searched_and_chosen_from_by_keys(window: Window) -> None:
    window.app.context.actions.run("find_preset")
    found = next(w for w in window.app.root.winfo_children() if isinstance(w, PresetList))
    window.wait_until(lambda: found.rows[0].config is not None, "what the presets are for")
    assert found.matches[0].preset.name == "#demo"
    tree = found.table.tree
    cells = [
        (tree.item(row, "text"), tree.set(row, "about"), found.matches[int(row)].notes) for row in tree.get_children()
    ]
    assert [title for title, _, _ in cells].count(" Stable Diffusion XL") == 1  # above its presets
    for _, about, notes in cells:
        text = about.removesuffix("…")
        assert notes.startswith(text)
        assert not notes[len(text) :][:1].isalnum()  # cut after a word
    window.wait_until(lambda: "No GPU was found. This computer can train the demo" in found.foot.cget("text"), "these")
    found.text.set("lora 8 gb xl")
    assert found.matches[0].preset.name == "#sdxl 1.0 LoRA 8 GB"
    assert found.matches[0].trains == "LoRA"
    inner = found.entry.tk_entry
    inner.focus_force()
    window.app.root.update()
    inner.event_generate("<Return>")
    window.settle()
    assert window.app.form.source.name == "#sdxl 1.0 LoRA 8 GB"


def test_a_menu_without_presets_has_a_note(window: Window, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(presets, "BUILT_IN_DIR", tmp_path)
    assert "No presets" in entries(window.app.shell.top_bar.make_menu())


def test_the_name_and_unsaved_changes_are_visible(window: Window, tmp_path: Path) -> None:
    bar, form = window.app.shell.top_bar, window.app.form
    form.edit_text("training.epochs", "77")
    window.settle()
    assert "•" in bar.preset_button.cget("text")
    assert bar.differs_link.cget("text") == "1 change"
    window.asked.answers["ask_save_file"] = tmp_path / "a-rather-long-name-for-a-config-file.json"
    window.app.context.actions.run("save_as_file")
    window.settle()
    assert (bar._caption.cget("text"), bar.differs_link.cget("text")) == ("Config", "1 not at default")
    assert bar.preset_button.cget("text").startswith("a-rather-long-name-for-a-…")
    form.undo()
    window.settle()
    assert "•" in bar.preset_button.cget("text")


def test_the_buttons_load_and_save(window: Window, tmp_path: Path) -> None:
    buttons = {b.cget("text"): b for b, _ in window.app.context.buttons._buttons}
    window.asked.answers["ask_save_file"] = tmp_path / "mine.json"
    buttons["Save"].invoke()
    assert (tmp_path / "mine.json").is_file()
    window.app.form.edit_text("training.epochs", "77")
    window.asked.answers["ask_file"] = tmp_path / "mine.json"
    buttons["Load…"].invoke()
    window.settle()
    assert window.app.form.config.training.epochs != 77
    assert window.app.shell.bottom_bar.detail.cget("text") == "Loaded mine.json."


def test_save_as_offers_a_file_and_a_preset(window: Window) -> None:
    menu = window.app.shell.top_bar.make_save_menu()
    assert entries(menu) == ["As a file…", "As a preset…", "---", label_of(window, "export")]
    for index in (0, 1, 3):
        menu.invoke(index)
    assert [verb for verb, _ in window.asked.calls] == ["ask_save_file", "ask_text", "ask_save_file"]


def test_the_three_choices_follow_and_change_the_config(window: Window) -> None:
    choices = window.app.shell.top_bar.choices
    assert list(choices) == ["model.family", "training.method", "training.trains"]
    pick(choices["training.trains"], "full")
    assert window.app.form.config.training.trains == "full"
    window.app.form.undo()
    assert choices["training.trains"].get() == "LoRA"


@pytest.mark.parametrize("width", [1100, 860, 640])
def test_nothing_of_the_bars_is_cut_in_a_narrow_window(window: Window, width: int) -> None:
    """As at a scale of 150 or 200 % on a small screen: the training target and Start were cut."""
    root, context, shell = window.app.root, window.app.context, window.app.shell
    root.minsize(1, 1)
    root.geometry(f"{width}x560+0+0")
    context.form.choose_variant("training.method", "online_dpo")
    context.session.show_past(RunState(started=started(), step=step(3), finished=RunFinished("stopped", 3, "Stopped.")))
    for key in ("queue", "concepts", "sample"):  # with buttons of their own next to the title, or in a tool bar
        other: Any = window.open_page(key)
        window.settle()
        bar = list(other.buttons.values()) if key != "sample" else []
        parts = [p for p in (other.frame._title, *other.frame.buttons.winfo_children(), *bar) if p.winfo_manager()]
        assert all(part.winfo_width() >= part.winfo_reqwidth() for part in parts), key
        assert all(p.winfo_rootx() + p.winfo_width() <= root.winfo_rootx() + width for p in parts), key
    page: Any = window.open_page("run")
    window.settle()
    frame, actions = page.frame, context.actions
    buttons = [button for button in frame._actions if button.winfo_manager()]
    menu = frame.more_menu()
    in_menu = [menu.entrycget(entry, "label") for entry in range((menu.index("end") or -1) + 1)] if frame._more else []
    assert [*(b.cget("text") for b in buttons), *in_menu] == [actions[name].label for name in frame._names]
    more = [frame._more] if in_menu else []
    bars = [*shell.top_bar.choices.values(), shell.top_bar.save_as_button, shell.bottom_bar.start, *buttons, *more]
    for widget in [*bars, frame._title]:
        assert widget.winfo_viewable(), widget
        assert widget.winfo_width() >= widget.winfo_reqwidth(), widget
        assert widget.winfo_rootx() + widget.winfo_width() <= root.winfo_rootx() + width, widget
    assert shell.bottom_bar.phase.winfo_width() >= shell.bottom_bar.phase.winfo_reqwidth()


def test_page_buttons_go_into_the_menu_without_a_jump_of_the_page(window: Window) -> None:
    """They were below the title for a moment, since Tk had not yet measured the row without them."""
    root, page = window.app.root, window.open_page("run")
    root.minsize(1, 1)
    root.geometry("1300x560+0+0")
    window.settle()
    frame: Any = page.frame
    assert frame._more is None
    heights: list[int] = []
    frame.buttons.master.bind("<Configure>", lambda event: heights.append(event.height), add="+")
    root.geometry("860x560+0+0")
    window.settle()
    assert frame._more is not None
    assert len(set(heights)) == 1


def test_a_long_name_does_not_push_the_choices_out_of_the_window(window: Window) -> None:
    """The preset's button grows to its text, which the bar did not expect: the training target was cut."""
    root, bar = window.app.root, window.app.shell.top_bar
    window.app.form.load(window.app.form.config, Source("train_lora_of_the_cup"))
    root.minsize(1, 1)
    for width in range(1000, 860, -8):
        root.geometry(f"{width}x560+0+0")
        window.settle()
        choice = bar.choices["training.trains"]
        assert choice.winfo_rootx() + choice.winfo_reqwidth() <= root.winfo_rootx() + width, width


def test_problems_of_a_file_are_listed_and_link_to_their_fields(window: Window, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    tree = {"darkroom_version": 7, "training": {"epochs": "many"}, "what": 1, "adapter": {"rank": 0}}
    path.write_text(json.dumps(tree), encoding="utf-8")
    window.app.context.documents.open_file(path)
    window.settle()
    bar = window.app.shell.findings_bar
    assert bar.winfo_ismapped()
    assert bar.title.cget("text") == "Loaded odd"
    kinds = [b.cget("text") for b in bar.kinds.values() if b.winfo_ismapped()]
    assert kinds == ["▲  2 warnings", "•  1 note"]
    text = bar.list.get("1.0", "end")
    assert "Training › Epochs" in text
    index = next(i for i, f in enumerate(window.app.context.findings.items) if f.problem.path == "adapter.rank")
    bar.list.see(f"{index + 1}.0")
    window.settle()
    x, y, width, height = bar.list.bbox(f"{index + 1}.6")
    bar.list.event_generate("<Motion>", x=x + width // 2, y=y + height // 2)
    bar.list.event_generate("<Button-1>", x=x + width // 2, y=y + height // 2)
    window.settle()
    assert window.app.context.navigation.page == "training"
    bar.close_button.invoke()
    window.settle()
    assert not bar.winfo_ismapped()


def test_an_onetrainer_file_opens_with_its_report(window: Window, tmp_path: Path) -> None:
    path = tmp_path / "onetrainer.json"
    tree = {"__version": 11, "training_method": "LORA", "model_type": "STABLE_DIFFUSION_15", "epochs": 7}
    path.write_text(json.dumps(tree), encoding="utf-8")
    window.app.context.documents.open_file(path)
    window.settle()
    assert window.app.form.config.training.epochs == 7
