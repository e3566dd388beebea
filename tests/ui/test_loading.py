"""Files of every version through the window, by real events: loaded, reported, fixed, saved, exported."""

from __future__ import annotations

import json
import shutil
import tkinter as tk
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modules.config.codec import load_file
from modules.config.presets import BUILT_IN_DIR, list_presets
from modules.config.schema import Config
from modules.system.problem import Problem
from tests.ui.conftest import Window
from tests.ui.driving import answer_file_dialog, drop, inside, type_into
from ui.app.message_bars import FindingsBar
from ui.app.session_files import load_session
from ui.forms import items
from ui.forms.documents import NOTHING_IMPORTED
from ui.forms.setting_pages import Navigation
from ui.widgets.entry import Entry
from ui.widgets.panel import focused_widget

FIXTURES = Path(__file__).parent / "fixtures"
AGES = ("onetrainer_0", "onetrainer_3", "onetrainer_5", "onetrainer_11", "ours")
# All are loaded by the dialog; the other ways lead to the same function.
DAILY_AGES = [age if age in ("onetrainer_3", "ours") else pytest.param(age, marks=pytest.mark.full) for age in AGES]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user folder with a file of every version."""
    return Path(shutil.copytree(FIXTURES, tmp_path / "mine"))


def click_entry(window: Window, path: str) -> None:
    """Move the pointer onto an entry of the report and click."""
    bar = window.app.shell.findings_bar
    window.settle()
    index = next(i for i, f in enumerate(window.app.context.findings.visible) if f.problem.path == path)
    bar.list.see(f"{index + 1}.0")
    bar.update()
    x, y, width, height = bar.list.bbox(f"{index + 1}.3")
    bar.list.event_generate("<Motion>", x=x + width // 2, y=y + height // 2)
    bar.list.event_generate("<Button-1>", x=x + width // 2, y=y + height // 2)
    window.settle()


def recent_files(window: Window) -> tk.Menu:
    """Return the submenu of recent files."""
    menu = window.app.shell.top_bar.make_menu()
    inner: tk.Menu = menu.nametowidget(menu.entrycget("Recent files", "menu"))
    return inner


def labels_of(menu: tk.Menu) -> list[str]:
    """Return the labels of a menu's commands."""
    return [str(menu.entrycget(i, "label")) for i in range((menu.index("end") or 0) + 1)]


def has_focus(window: Window, path: str) -> bool:
    """Whether the keyboard's focus is in the entry of a field."""
    page = window.app.shell.pages[window.app.context.navigation.page]
    row = next(r for r in page.form_view.rows() if r.record.path == path)  # type: ignore[attr-defined]
    return focused_widget(window.app.root) is inside(row.control.frame, Entry).tk_entry


def report_is_shown_and_leads_to_the_field(window: Window) -> None:
    bar = window.app.shell.findings_bar
    window.settle()
    assert bar.winfo_ismapped()
    assert "'many'" in bar.list.get("1.0", "end")
    window.app.root.focus_force()
    click_entry(window, "training.epochs")
    assert window.app.context.navigation.page == "training"
    window.wait_until(lambda: has_focus(window, "training.epochs"), "the focus in the field")
    bar.close_button.invoke()
    window.settle()
    assert not bar.winfo_ismapped()


@pytest.mark.parametrize("age", AGES)
def test_a_file_of_every_version_is_loaded_by_the_dialog_fixed_and_saved(
    open_window: Callable[..., Window], folder: Path, age: str
) -> None:
    window = open_window(with_dialogs=True)
    file = folder / f"{age}.json"
    before = file.read_bytes()
    answer_file_dialog(window.app.root, file)
    window.app.context.actions.run("load")
    window.settle()
    assert window.app.form.source.path == file
    assert window.app.form.config.training.batch_size == 2
    report_is_shown_and_leads_to_the_field(window)

    page: Any = window.app.shell.pages["training"]
    row = next(r for r in page.form_view.rows() if r.record.path == "training.epochs")
    type_into(inside(row.control.frame, Entry), "77")
    inside(row.control.frame, Entry).tk_entry.event_generate("<Control-s>")
    window.settle()
    kept = file.with_name(f"{file.name}.bak")
    message = window.app.shell.bottom_bar.detail.cget("text")
    if age == "ours":
        assert not kept.exists()
        assert message == f"Saved {file.name}."
    else:
        assert kept.read_bytes() == before
        assert message == f"Saved {file.name}. The older file is kept as {kept.name}."
    again = load_file(file)
    assert (again.was_migrated, again.config.training.epochs) == (False, 77)
    assert again.config == window.app.form.config


@pytest.mark.parametrize("age", DAILY_AGES)
def test_a_file_of_every_version_is_dropped_on_the_window(window: Window, folder: Path, age: str) -> None:
    pytest.importorskip("tkinterdnd2")
    drop(window.app.shell.top_bar.preset_button, folder / f"{age}.json")
    window.settle()
    assert window.app.form.source.path == folder / f"{age}.json"
    report_is_shown_and_leads_to_the_field(window)


@pytest.mark.parametrize("age", DAILY_AGES)
def test_a_file_of_every_version_is_a_recent_file_and_opens_on_the_command_line(
    open_window: Callable[..., Window], folder: Path, age: str
) -> None:
    window = open_window(folder / f"{age}.json")
    assert window.app.form.source.name == age
    report_is_shown_and_leads_to_the_field(window)
    window.app.form.load(Config(), window.app.form.source)
    menu = recent_files(window)
    menu.invoke(labels_of(menu).index(f"{age}.json"))
    report_is_shown_and_leads_to_the_field(window)


def test_a_missing_recent_file_is_removed_from_the_list(window: Window, folder: Path) -> None:
    window.app.context.documents.open_file(folder / "ours.json")
    window.settle()
    window.app.preferences.note_file(folder / "gone.json")
    window.app.context.documents.open_recent(folder / "gone.json")
    window.settle()
    assert window.app.preferences.now.recent == (str(folder / "ours.json"),)
    assert "gone.json was not found in" in window.app.shell.bottom_bar.detail.cget("text")
    assert window.app.form.source.name == "ours"


def test_recent_files_of_one_name_show_their_folders(window: Window, tmp_path: Path) -> None:
    for name in ("cats", "dogs"):
        window.app.preferences.note_file(tmp_path / name / "config.json")
    assert {"config.json   in cats", "config.json   in dogs"} == set(labels_of(recent_files(window)))


def test_folders_dropped_on_the_concepts_are_concepts_and_a_config_is_a_config(
    window: Window, folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("tkinterdnd2")
    page = window.open_page("concepts")
    (tmp_path / "cats and dogs").mkdir()
    drop(page.grid.canvas, tmp_path / "cats and dogs")  # type: ignore[attr-defined]
    assert [c.path for c in window.app.form.config.concepts] == [str(tmp_path / "cats and dogs")]
    drop(page.grid.canvas, folder / "onetrainer_3.json")  # type: ignore[attr-defined]
    window.settle()
    assert [c.path for c in window.app.form.config.concepts] == ["pictures/cats"]
    window.app.context.navigation.open("output")
    drop(window.app.shell.host, tmp_path / "cats and dogs")
    window.settle()
    assert "on the Concepts page" in window.app.shell.bottom_bar.detail.cget("text")


def test_a_file_that_is_not_a_config_is_reported_and_changes_nothing(window: Window, tmp_path: Path) -> None:
    pytest.importorskip("tkinterdnd2")
    for name, content in (("a.json", b"\xff"), ("b.json", b"[]"), ("c.toml", b"= 3"), ("d.safetensors", b"")):
        before = window.app.form.document
        (tmp_path / name).write_bytes(content)
        drop(window.app.shell.host, tmp_path / name)
        window.settle()
        assert window.app.form.document == before
        assert window.app.shell.findings_bar.title.cget("text") == f"{name} could not be loaded"
        assert "Loading" not in window.app.shell.bottom_bar.detail.cget("text"), "it has ended"


def test_a_file_of_another_kind_is_not_saved_over(window: Window, tmp_path: Path) -> None:
    file = tmp_path / "kohya.toml"
    file.write_text('pretrained_model_name_or_path = "x"\nnetwork_module = "networks.lora"\nmax_train_epochs = 4\n')
    before = file.read_bytes()
    window.app.context.documents.open_file(file)
    window.settle()
    assert window.app.form.source.path is None
    window.asked.answers["ask_save_file"] = tmp_path / "mine.json"
    window.app.context.actions.run("save")
    assert file.read_bytes() == before
    assert (tmp_path / "mine.json").is_file()


def test_a_built_in_preset_is_never_written_to_by_any_way(window: Window) -> None:
    file = BUILT_IN_DIR / "sd" / "#demo.json"
    before = file.read_bytes()
    documents = window.app.context.documents
    documents.open_file(file)
    window.settle()
    assert window.app.form.source.kind == "built_in"
    window.app.form.edit_text("training.epochs", "77")
    window.asked.answers["ask_save_file"] = file
    for write in (documents.save, documents.save_as_file, documents.export):
        write()
    assert file.read_bytes() == before
    assert len(window.asked.asked("show_failure")) == 3


def test_export_writes_one_file_and_leaves_the_config_where_it_belongs(
    open_window: Callable[..., Window], folder: Path
) -> None:
    window = open_window(folder / "onetrainer_3.json", with_dialogs=True)
    before = (folder / "onetrainer_3.json").read_bytes()
    answer_file_dialog(window.app.root, folder / "complete.json")
    window.app.context.actions.run("export")
    window.settle()
    assert window.app.shell.bottom_bar.detail.cget("text") == "Exported complete.json."
    assert (folder / "onetrainer_3.json").read_bytes() == before
    assert window.app.form.source.path == folder / "onetrainer_3.json"
    tree = json.loads((folder / "complete.json").read_text(encoding="utf-8"))
    assert [c["path"] for c in tree["concepts"]] == ["pictures/cats"]
    assert [p["prompt"] for p in tree["sampling"]["prompts"]] == ["a cat"]


def test_the_presets_of_onetrainer_are_imported_with_one_report(window: Window, folder: Path) -> None:
    (folder / "#built in.json").write_text("{}")
    window.asked.answers["ask_folder"] = folder
    window.app.context.actions.run("import_presets")
    window.settle()
    assert {p.name for p in list_presets() if not p.is_built_in} == set(AGES)
    bar = window.app.shell.findings_bar
    assert bar.title.cget("text") == "Presets from mine"
    text = bar.list.get("1.0", "end")
    assert all(f"{name}: imported." in text for name in AGES)
    assert window.app.shell.bottom_bar.detail.cget("text") == "5 presets imported from mine. See the preset menu."
    window.asked.answers["ask_folder"] = folder / "nowhere"
    window.app.context.actions.run("import_presets")
    assert window.app.context.findings.title == NOTHING_IMPORTED


# -- the report itself


def many(count: int) -> list[Problem]:
    notes = [
        Problem("training.epochs", f"Note {n} has a long text. " + "And more. " * (n % 7), "info") for n in range(count)
    ]
    return [*notes, Problem("training.batch_size", "A warning.", "warning"), Problem("", "An error.", "error")]


def bar_with(window: Window, problems: list[Problem]) -> FindingsBar:
    window.app.context.findings.show("Many", problems, window.app.form.config)
    window.settle()
    return window.app.shell.findings_bar


def test_a_long_report_scrolls_grows_and_keeps_the_page_visible(window: Window) -> None:
    bar = bar_with(window, many(60))
    assert bar.scroll_bar.is_needed
    assert bar.list.get("1.0", "1.end").endswith("An error.")
    short = bar.winfo_height()
    assert bar.height_button.winfo_ismapped()
    bar.height_button.invoke()
    window.settle()
    assert bar.winfo_height() > short * 1.4
    assert window.app.shell.host.winfo_height() > 100
    bar.height_button.invoke()
    window.settle()
    assert bar.winfo_height() == short


@pytest.mark.parametrize("width", [1060, 1600])
def test_nothing_of_a_report_is_clipped(window: Window, width: int) -> None:
    window.app.root.geometry(f"{width}x740+0+0")
    window.wait_until(lambda: window.app.root.winfo_width() == width)
    long = Problem("training.epochs", "An entry that is long enough for several lines. " * 6, "warning", "Do this.")
    bar = bar_with(window, [long])
    assert not bar.scroll_bar.is_needed
    x, y, glyph_width, height = bar.list.bbox("end-2c")
    assert x + glyph_width <= bar.list.winfo_width()
    assert y + height <= bar.list.winfo_height() < y + 3 * height, "as high as the entry, and not much more"
    for button in (bar.close_button, bar.copy_button):
        assert button.winfo_rootx() + button.winfo_width() <= bar.winfo_rootx() + bar.winfo_width()


def test_entries_of_a_kind_are_hidden_and_shown(window: Window) -> None:
    bar = bar_with(window, many(3))
    assert [b.cget("text") for b in bar.kinds.values()] == ["✖  1 error", "▲  1 warning", "•  3 notes"]
    bar.kinds["info"].invoke()
    window.settle()
    assert "Note 1" not in bar.list.get("1.0", "end")
    click_entry(window, "training.batch_size")
    assert window.app.context.navigation.page == "training"
    bar.kinds["info"].invoke()
    window.settle()
    assert "Note 1" in bar.list.get("1.0", "end")


def test_everything_is_copied_including_hidden_entries(window: Window) -> None:
    bar = bar_with(window, many(3))
    bar.kinds["info"].invoke()
    bar.copy_button.invoke()
    text = window.app.root.clipboard_get()
    assert text.splitlines()[:3] == ["Many", "Error: An error.", "Warning: Training › Batch size: A warning."]
    assert len(text.splitlines()) == 6


def test_the_report_works_by_keyboard(window: Window) -> None:
    bar = bar_with(window, many(2))
    bar.list.focus_force()
    for _ in range(2):
        bar.list.event_generate("<Down>")
    bar.list.event_generate("<Return>")
    window.settle()
    window.wait_until(lambda: has_focus(window, "training.batch_size"), "the focus in the field")
    marked = bar.list.tag_ranges("current")
    assert bar.list.get(str(marked[0]), str(marked[1])).strip().endswith("A warning.")


def test_an_unknown_setting_has_no_link(window: Window, folder: Path) -> None:
    window.app.context.documents.open_file(folder / "ours.json")
    window.settle()
    click_entry(window, "a_key_of_tomorrow")
    assert window.app.context.navigation.page == "home"
    assert window.app.shell.findings_bar.list.cget("cursor") == "arrow"


# -- ten problems of a check


@pytest.mark.full
def test_each_of_twelve_problems_links_to_its_field(window: Window, tmp_path: Path) -> None:
    form = window.app.form
    config = Config.model_validate({"concepts": [{"path": str(tmp_path)}] * 3, "sampling": {"prompts": [{}, {}]}})
    form.load(config, form.source)
    places = {
        "model.base_model": "model",
        "parts.unet.train": "model",
        "output.destination": "output",
        "data.resolution_px": "data",
        "concepts.2.path": "concepts",
        "concepts": "concepts",
        "training.learning_rate": "training",
        "training.optimizer.beta1": "training",
        "adapter.rank": "training",
        "validation.every": "sampling",
        "sampling.prompts.1.width_px": "sampling",
        "backup.every": "output",
    }
    bar = bar_with(window, [Problem(path, "It does not fit.", advice="Change it.") for path in places])
    assert bar.kinds["error"].cget("text") == "✖  12 errors"
    for path, page in places.items():
        click_entry(window, path)
        assert window.app.context.navigation.page == page, path
    concepts, sampling = (window.app.shell.pages[key] for key in ("concepts", "sampling"))
    assert concepts.editor.path == "concepts.2"  # type: ignore[attr-defined]
    assert concepts.selected_indices == [2]  # type: ignore[attr-defined]
    assert sampling.editor.path == "sampling.prompts.1"  # type: ignore[attr-defined]
    concepts.editor.close()  # type: ignore[attr-defined]
    for path in ("concepts.1", "concepts.1.no_such_field"):
        window.app.context.navigation.go_to(path)
        assert concepts.selected_indices == [1]  # type: ignore[attr-defined]
        assert not concepts.editor.winfo_exists()  # type: ignore[attr-defined]


def test_a_path_without_a_field_links_to_the_nearest_one() -> None:
    from ui.forms.model import FormModel

    form = FormModel(Config.model_validate({"concepts": [{"path": "x"}]}))
    wanted: list[str] = []
    navigation = Navigation(form, ["output", "concepts"], "output")
    navigation.field_wanted.subscribe(lambda _page, path: wanted.append(path))
    for path in ("training.optimizer.no_such_field", "concepts.0.no_such_field", "concepts.7.path", "training"):
        assert navigation.go_to(path)
    assert wanted == ["training.optimizer", "concepts.0", "concepts", "training"]
    items.remove(form, "concepts", [0])


# -- the last session


def test_a_broken_session_is_moved_aside_and_reported_and_the_window_opens(
    open_window: Callable[..., Window], tmp_path: Path
) -> None:
    first = open_window()
    file = first.app._session.file
    first.app.close()
    file.write_bytes(file.read_bytes()[:200])
    window = open_window()
    assert window.app.shell.findings_bar.winfo_ismapped()
    assert "could not be read" in window.app.shell.findings_bar.list.get("1.0", "end")
    assert window.app.form.config == Config()
    assert len(list(file.parent.glob("*.bad"))) == 1
    window.app.save_session()
    assert load_session(file).problems == ()


def test_a_dismissed_report_is_restored_from_the_menu(window: Window) -> None:
    bar, findings, top = window.app.shell.findings_bar, window.app.context.findings, window.app.shell.top_bar
    label = window.app.context.actions["bring_back"].label

    def offered() -> list[str]:
        menu = top.make_menu()
        last = menu.index("end") or 0
        return [str(menu.entrycget(i, "label")) for i in range(last + 1) if menu.type(i) == "command"]

    assert label not in offered()
    findings.show("Found", [Problem("training.epochs", "Too few.", "warning")], window.app.form.config)
    window.settle()
    bar.close_button.invoke()
    window.settle()
    assert not bar.winfo_ismapped()
    menu = top.make_menu()
    menu.invoke(label)
    window.settle()
    assert bar.winfo_ismapped()
    assert "Too few." in bar.list.get("1.0", "end")
    assert label not in offered()
    bar.close_button.invoke()
    findings.show("Nothing found", [], window.app.form.config)
    assert label not in offered()
