"""The sample prompts: a table with an editor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modules.config.sections.embeddings import EmbeddingSettings
from modules.config.sections.evaluation import SamplePrompt
from tests.ui.conftest import Window
from tests.ui.driving import change, expected, inside, shown_by, walk
from ui.forms import items
from ui.widgets.controls import Button
from ui.widgets.scroll import ScrollFrame
from ui.widgets.table import Table


def row_values(table: Table, index: int) -> list[str]:
    tree = table.tree
    return [str(tree.item(str(index), "text")).strip(), *map(str, tree.item(str(index), "values"))]


@pytest.fixture
def sampling(window: Window) -> Any:
    window.app.form.edit("sampling.prompts", ())
    return window.open_page("sampling")


def test_a_first_sample_has_the_training_resolution(window: Window, sampling: Any) -> None:
    window.app.form.edit("data.resolution_px", [64])
    sampling.list.buttons["add"].invoke()
    window.settle()
    (sample,) = window.app.form.config.sampling.prompts
    assert (sample.width_px, sample.height_px) == (64, 64)
    assert sampling.editor.winfo_viewable()
    focused = sampling.editor.focus_lastfor()
    assert focused is sampling.editor.form_view.reveal("sampling.prompts.0.prompt").control.frame.text


def test_a_sample_whose_form_is_built_slowly_has_the_focus_in_its_prompt_unless_a_field_is_shown(
    window: Window, sampling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The focus was on the window, and what the user typed was lost."""
    monkeypatch.setattr("ui.loop.pump.FIRST_SLICE_SECONDS", 0.0)
    window.app.context.pump.tick()  # from now on, nothing is built at once
    sampling.list.buttons["add"].invoke()
    for path in ("sampling.prompts.0.prompt", "sampling.prompts.0.steps"):
        window.settle()
        (row,) = (row for row in sampling.editor.form_view.rows() if row.record.path == path)
        assert str(sampling.editor.focus_lastfor()).startswith(str(row.control.frame))
        assert window.app.context.navigation.go_to("sampling.prompts.0.steps")


def test_the_next_one_is_like_the_last(window: Window, sampling: Any) -> None:
    items.add(window.app.form, "sampling.prompts", [SamplePrompt(prompt="a cat", steps=7)])
    sampling.list.buttons["add"].invoke()
    assert window.app.form.config.sampling.prompts[1] == SamplePrompt(prompt="", steps=7)


def test_every_field_of_a_sample_is_edited(window: Window, sampling: Any) -> None:
    items.add(window.app.form, "sampling.prompts", [SamplePrompt(prompt="a cat")])
    assert row_values(sampling.list.table, 0) == ["a cat", "512 × 512", "42", "25", "7.5"]
    tree = sampling.list.table.tree
    x, y, _, height = tree.bbox("0", "#0")
    on, off = (str(sampling.list._switches.of(is_on=is_on)) for is_on in (True, False))
    assert str(tree.item("0", "image")[0]) == on
    for wanted in (off, on):
        tree.event_generate("<Button-1>", x=x + 10, y=y + height // 2)
        window.settle()
        assert str(tree.item("0", "image")[0]) == wanted
    assert window.app.form.config.sampling.prompts[0].enabled
    editor = sampling.edit(0)
    window.settle()
    for path in [row.record.path for row in editor.form_view.rows()]:
        row = editor.form_view.reveal(path)
        window.settle()
        assert shown_by(row) == expected(row.record, window.app.form.value(path))
        before = window.app.form.value(path)
        change(row)
        assert window.app.form.value(path) != before, path
    assert not window.app.form.config.sampling.prompts[0].enabled
    assert str(tree.item("0", "image")[0]) == off
    editor.event_generate("<Escape>")


def test_a_sample_of_an_inpainting_model_has_an_image_and_a_mask(window: Window, sampling: Any, tmp_path: Path) -> None:
    items.add(window.app.form, "sampling.prompts", [SamplePrompt(prompt="a cat")])
    editor = sampling.edit(0)
    window.settle()
    names = ("inpainting", "base_image", "mask_image")

    def shown() -> list[str]:
        window.settle()
        paths = [row.record.path.rpartition(".")[2] for row in editor.form_view.rows() if row.is_shown]
        return [name for name in names if name in paths]

    assert shown() == []
    window.app.form.edit("model.variant", "inpainting")
    assert shown() == ["inpainting"]
    window.app.form.edit("sampling.prompts.0.inpainting", True)
    assert shown() == list(names)
    for name in names[1:]:
        window.asked.answers["ask_file"] = tmp_path / f"{name}.png"
        browse = inside(editor.form_view.reveal(f"sampling.prompts.0.{name}").control.frame, Button)
        browse.invoke()
        assert window.app.form.value(f"sampling.prompts.0.{name}").endswith(f"{name}.png")
    editor.event_generate("<Escape>")


def test_a_field_that_has_the_focus_is_scrolled_to(window: Window, sampling: Any) -> None:
    items.add(window.app.form, "sampling.prompts", [SamplePrompt(prompt="a cat")])
    editor = sampling.edit(0)
    editor.geometry("560x200")
    assert editor.show_field("sampling.prompts.0.prompt")
    window.settle()
    scroll = next(w for w in walk(editor) if isinstance(w, ScrollFrame))
    scroll.scroll_px(10_000)
    away = scroll.canvas.canvasy(0)
    assert editor.show_field("sampling.prompts.0.prompt")
    window.settle()
    assert scroll.canvas.canvasy(0) < away
    editor.event_generate("<Escape>")


def test_a_problem_of_a_sample_opens_its_editor(window: Window, sampling: Any) -> None:
    items.add(window.app.form, "sampling.prompts", [SamplePrompt(), SamplePrompt()])
    assert window.app.context.navigation.go_to("sampling.prompts.1.seed")
    window.settle()
    assert sampling.editor.path == "sampling.prompts.1"
    assert window.app.context.navigation.go_to("sampling.prompts")


def test_a_list_without_switches_has_no_button_for_them(window: Window) -> None:
    window.app.form.edit("embeddings.words", [EmbeddingSettings()])
    page: Any = window.open_page("embeddings")
    assert not page.list.table._empty.winfo_ismapped()
    assert list(page.list.buttons) == ["add", "edit", "duplicate", "remove", "up", "down"]
    before = window.app.form.config
    page.list.table.select([0])
    tree = page.list.table.tree
    tree.focus_force()
    window.app.root.update()
    tree.event_generate("<space>")
    x, y, _, height = tree.bbox("0", "#0")
    tree.event_generate("<Button-1>", x=x + 10, y=y + height // 2)
    assert window.app.form.config == before
    page.list.buttons["remove"].invoke()
    window.settle()
    assert page.list.table._empty.winfo_ismapped(), "an empty list is explained"


def test_the_buttons_and_keys_of_a_list(window: Window, sampling: Any) -> None:
    form, table, buttons = window.app.form, sampling.list.table, sampling.list.buttons
    items.add(form, "sampling.prompts", [SamplePrompt(prompt="a cat"), SamplePrompt(prompt="a dog")])
    prompts = lambda: [p.prompt for p in form.config.sampling.prompts]  # noqa: E731
    table.select([0])
    window.app.root.update()
    buttons["duplicate"].invoke()
    assert (prompts(), table.selected) == (["a cat", "a cat", "a dog"], [1])
    buttons["down"].invoke()
    assert (prompts(), table.selected) == (["a cat", "a dog", "a cat"], [2])
    buttons["toggle"].invoke()
    assert [p.enabled for p in form.config.sampling.prompts] == [True, True, False]
    window.settle()
    x, y, _, height = table.tree.bbox("0", "#0")
    table.tree.event_generate("<Button-1>", x=x + 20, y=y + height // 2)
    assert form.config.sampling.prompts[0].enabled is False
    table.select([2])
    table.tree.focus_force()
    window.app.root.update()
    table.tree.event_generate("<Delete>")
    assert prompts() == ["a cat", "a dog"]
    form.undo()
    table.tree.event_generate("<Control-a>")
    assert table.selected == [0, 1, 2]
