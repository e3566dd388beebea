"""The concepts and the sample prompts: tables, editors, folder scans."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.config.sections.evaluation import SamplePrompt
from modules.data.concept import Concept
from tests.builders.shards import draw_shard
from tests.ui.conftest import Window
from tests.ui.driving import change, expected, fill, flip, inside, shown_by
from ui.editors.images import ImageViewer
from ui.forms import items
from ui.widgets.controls import Button, Switch
from ui.widgets.entry import Entry
from ui.widgets.table import Table


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders: one with three images, captions and broken files, one with an image in a sub-folder."""
    first, second = tmp_path / "cats", tmp_path / "dogs"
    first.mkdir()
    for n in range(3):
        Image.new("RGB", (64, 48), (40 * n, 90, 120)).save(first / f"cat_{n}.png")
    (first / "cat_0.txt").write_text("a cat that sits", encoding="utf-8")
    (first / "broken.png").write_bytes(b"not an image")
    (first / "empty.jpg").write_bytes(b"")
    (second / "below").mkdir(parents=True)
    Image.new("RGB", (48, 64)).save(second / "below" / "dog.png")
    return first, second


def row_values(table: Table, index: int) -> list[str]:
    tree = table.tree
    return [str(tree.item(str(index), "text")).strip(), *map(str, tree.item(str(index), "values"))]


@pytest.fixture
def concepts(window: Window, folders: tuple[Path, Path]) -> Any:
    page: Any = window.open_page("concepts")
    window.asked.answers["ask_folders"] = folders
    page.list.buttons["add"].invoke()
    window.wait_until(lambda: "…" not in {row_values(page.list.table, i)[3] for i in range(2)}, "scans")
    return page


def test_an_empty_list_shows_a_hint(window: Window) -> None:
    window.app.form.edit("concepts", ())
    page: Any = window.open_page("concepts")
    assert page._empty.winfo_ismapped()


def test_folders_are_added_several_at_once(window: Window, concepts: Any, folders: tuple[Path, Path]) -> None:
    assert [c.path for c in window.app.form.config.concepts] == [str(f) for f in folders]
    assert row_values(concepts.list.table, 0) == ["cats", "●", "Training", "3 (2 skipped)", str(folders[0])]
    assert row_values(concepts.list.table, 1) == ["dogs", "●", "Training", "0", str(folders[1])]
    assert concepts.list.table.selected == [0, 1]
    assert concepts._summary.cget("text") == "2 concepts, 3 images in use"
    window.wait_until(lambda: concepts._photos and all(concepts._photos.values()), "thumbnails")
    assert concepts.list.table.tree.item("0", "image")
    assert not concepts._empty.winfo_ismapped()


def test_folders_are_dropped_on_the_window(window: Window, concepts: Any, folders: tuple[Path, Path]) -> None:
    concepts.add_folders([folders[0] / "cat_0.png", folders[0] / "cat_1.png"])
    assert [c.path for c in window.app.form.config.concepts][2:] == [str(folders[0])]


def test_duplicate_move_toggle_and_remove_by_buttons_and_keys(window: Window, concepts: Any) -> None:
    form, table, buttons = window.app.form, concepts.list.table, concepts.list.buttons
    names = lambda: [Path(c.path).name for c in form.config.concepts]  # noqa: E731
    table.select([0])
    window.app.root.update()
    buttons["duplicate"].invoke()
    assert names() == ["cats", "cats", "dogs"]
    assert table.selected == [1]
    buttons["down"].invoke()
    assert names() == ["cats", "dogs", "cats"]
    assert table.selected == [2]
    buttons["toggle"].invoke()
    assert [c.enabled for c in form.config.concepts] == [True, True, False]
    assert row_values(table, 2)[1] == "○"
    table.tree.focus_force()
    window.app.root.update()
    table.tree.event_generate("<Delete>")
    assert names() == ["cats", "dogs"]
    form.undo()
    assert names() == ["cats", "dogs", "cats"]
    table.tree.event_generate("<Control-a>")
    assert table.selected == [0, 1, 2]
    table.tree.event_generate("<space>")
    assert [c.enabled for c in form.config.concepts] == [False, False, False]


def test_the_on_column_is_a_switch(window: Window, concepts: Any) -> None:
    tree = concepts.list.table.tree
    window.settle()
    x, y, width, height = tree.bbox("0", "enabled")
    tree.event_generate("<Button-1>", x=x + width // 2, y=y + height // 2)
    assert window.app.form.config.concepts[0].enabled is False
    tree.event_generate("<Button-1>", x=x + width // 2, y=y + height // 2)
    assert window.app.form.config.concepts[0].enabled is True


def test_the_editor_shows_fields_images_and_what_is_skipped(window: Window, concepts: Any) -> None:
    window.settle()
    tree = concepts.list.table.tree
    x, y, *_ = tree.bbox("0", "path")
    for sequence in ("<Button-1>", "<ButtonRelease-1>", "<Button-1>"):
        tree.event_generate(sequence, x=x + 5, y=y + 5)
    editor = concepts.editor
    window.settle()
    assert editor.winfo_viewable()
    assert editor.summary.cget("text") == "3 images, 2 without a caption"
    assert [t.caption for t in editor.grid_view.tiles] == ["a cat that sits", "(no caption)", "(no caption)"]
    assert "broken.png: not a readable image" in editor.skipped.cget("text")
    assert "empty.jpg: an empty file" in editor.skipped.cget("text")
    grid = editor.grid_view
    window.wait_until(lambda: all((t.path, grid._tile_px) in grid._photos for t in grid.tiles), "thumbnails")
    for path in [row.record.path for row in editor.form_view.rows()]:
        row = editor.form_view.reveal(path)
        window.settle()
        assert shown_by(row) == expected(row.record, window.app.form.value(path))
        wanted = change(row)
        if wanted is None:  # a choice of one
            continue
        assert window.app.form.value(path) == wanted, path
        window.app.form.undo()
        window.settle()


def test_the_editor_shows_captions_with_all_operations(window: Window, concepts: Any) -> None:
    editor = concepts.edit(0)
    window.settle()
    text = window.app.form.value("concepts.0.text")
    window.app.form.edit("concepts.0.text", text.model_copy(update={"trigger_word": "sks", "prefix": "photo of"}))
    window.settle()
    captions = ["photo of sks, a cat that sits", "photo of sks", "photo of sks"]
    assert [t.caption for t in editor.grid_view.tiles] == captions
    assert "as they are trained, after wildcards, replacements" in editor.summary.cget("text")


def test_the_editor_scans_again_when_the_folder_changes(window: Window, concepts: Any) -> None:
    editor = concepts.edit(1)
    window.settle()
    assert editor.summary.cget("text") == "0 images"
    row = editor.form_view.reveal("concepts.1.include_subfolders")
    window.settle()
    flip(inside(row.control.frame, Switch))
    window.wait_until(lambda: editor.summary.cget("text").startswith("1 image"))
    row = editor.form_view.reveal("concepts.1.path")
    fill(inside(row.control.frame, Entry), "/nowhere")
    window.wait_until(lambda: editor.summary.cget("text") == "Folder not found.")
    assert row_values(concepts.list.table, 1)[4] == "/nowhere"


def test_the_editor_of_prompts_shows_them_in_place_of_images(window: Window, concepts: Any) -> None:
    editor = concepts.edit(0)
    window.app.form.edit("concepts.0.kind", "prompts")
    window.wait_until(lambda: editor.summary.cget("text") == "1 prompt")
    window.settle()
    assert editor.prompts.cget("text") == "a cat that sits"
    assert editor.prompts.winfo_ismapped()
    assert not editor.grid_view.winfo_ismapped()
    window.wait_until(lambda: row_values(concepts.list.table, 0)[2:4] == ["Prompts", "1"])
    assert concepts._summary.cget("text") == "2 concepts, 0 images, 1 prompt in use"
    window.app.form.edit("concepts.0.kind", "training")
    window.wait_until(lambda: editor.summary.cget("text").startswith("3 images"))
    window.settle()
    assert editor.grid_view.winfo_ismapped()
    assert not editor.prompts.winfo_ismapped()


def test_the_editor_closes_when_the_list_changes_under_it(window: Window, concepts: Any) -> None:
    editor = concepts.edit(0)
    window.settle()
    items.remove(window.app.form, "concepts", [0])
    window.wait_until(lambda: not editor.winfo_exists())


def test_a_problem_of_a_concept_opens_its_editor(window: Window, concepts: Any) -> None:
    assert window.app.context.navigation.go_to("concepts.1.path")
    window.settle()
    assert concepts.editor.path == "concepts.1"
    assert concepts.list.table.selected == [1]
    assert window.app.context.navigation.go_to("concepts")


def test_an_image_is_shown_large_and_keys_step_through(window: Window, concepts: Any) -> None:
    editor = concepts.edit(0)
    window.settle()
    editor._open(0)
    viewer = next(w for w in window.app.root.winfo_children() if isinstance(w, ImageViewer))
    window.wait_until(lambda: viewer._photo is not None, "the image")
    assert viewer.place_text.cget("text") == "1 of 3"
    viewer.focus_force()
    window.app.root.update()
    viewer.event_generate("<Right>")
    assert viewer.place_text.cget("text") == "2 of 3"
    viewer.event_generate("<Left>")
    viewer.event_generate("<Left>")
    assert viewer.index == 0
    viewer.show(99)
    assert viewer.place_text.cget("text") == "3 of 3"
    viewer.event_generate("<Escape>")
    assert not viewer.winfo_exists()


def test_windows_leave_nothing_behind(window: Window, concepts: Any) -> None:
    concepts.edit(0)
    window.settle()
    concepts._close_editor()
    window.settle()
    form = window.app.form
    before = len(window.app.root.winfo_children()), len(form._watchers), len(form.changed._listeners)
    for _ in range(10):
        concepts.edit(0)
        window.app.root.update()
        concepts._close_editor()
    window.settle()
    assert (len(window.app.root.winfo_children()), len(form._watchers), len(form.changed._listeners)) == before


def test_a_thousand_concepts(window: Window, tmp_path: Path) -> None:
    window.app.form.edit("concepts", tuple(Concept(name=str(n), path=str(tmp_path)) for n in range(1000)))
    begun = time.monotonic()
    page: Any = window.open_page("concepts")
    assert len(page.list.table.tree.get_children()) == 1000
    assert time.monotonic() - begun < 15  # a guard against the quadratic, not a measurement
    page.list.table.select([999])
    page.list.toggle_selected()
    assert window.app.form.config.concepts[999].enabled is False


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


def test_a_problem_of_a_sample_opens_its_editor(window: Window, sampling: Any) -> None:
    items.add(window.app.form, "sampling.prompts", [SamplePrompt(), SamplePrompt()])
    assert window.app.context.navigation.go_to("sampling.prompts.1.seed")
    window.settle()
    assert sampling.editor.path == "sampling.prompts.1"
    assert window.app.context.navigation.go_to("sampling.prompts")


def test_the_last_session_restores_the_lists(window: Window, open_window: Callable[..., Window], concepts: Any) -> None:
    again = open_window()
    page: Any = again.open_page("concepts")
    assert row_values(page.list.table, 0)[0] == "cats"
    assert again.app.context.navigation.page == "concepts"


def test_a_dropped_shard_is_a_concept_and_another_file_stands_for_its_folder(
    window: Window, concepts: Any, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    shard = draw_shard(tmp_path / "a.tar", sizes=[(64, 64)] * 2)
    concepts.add_folders([shard, next(folders[0].glob("*.png"))])
    paths = [c.path for c in window.app.form.value("concepts")[-2:]]
    assert [Path(p).name for p in paths] == ["a.tar", folders[0].name]
    editor = concepts.edit(len(window.app.form.value("concepts")) - 2)
    window.wait_until(lambda: editor.summary.cget("text").startswith("2 images"))
    assert [card.group.title for card in editor.form_view.cards][:3] == ["Concept", "Captions", "Balancing"]
