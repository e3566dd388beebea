"""The Concepts page and the editor of a concept, in a window."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.config.presets import list_presets
from modules.data.companions import find_references
from modules.data.concept import Concept
from modules.data.source_image import SourceImage
from modules.system.paths import from_root
from tests.builders.shards import draw_shard
from tests.ui.conftest import Window
from tests.ui.driving import change, drop, expected, fill, flip, inside, shown_by, walk
from tests.ui.test_labels import cut_off
from trainer.run_folder.image_report import ImageLoss, ImageReport, write_report
from ui.features.concepts import general_tab
from ui.features.concepts.bars import FilterBar
from ui.features.concepts.concept_images import ConceptLosses
from ui.forms import items
from ui.forms.model import Source
from ui.loop.background import Background
from ui.widgets.controls import Button, Switch
from ui.widgets.entry import Entry
from ui.widgets.image_viewer import ImageViewer
from ui.widgets.panel import focused_widget
from ui.widgets.theme import Theme


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders: one with three images, captions and broken files, one with an image in a sub-folder."""
    first, second = tmp_path / "cats", tmp_path / "dogs"
    first.mkdir()
    for n in range(3):
        Image.effect_noise((64, 48), 30 + n).convert("RGB").save(first / f"cat_{n}.png")
    (first / "cat_0.txt").write_text("a cat that sits", encoding="utf-8")
    (first / "broken.png").write_bytes(b"not an image")
    (first / "empty.jpg").write_bytes(b"")
    (second / "below").mkdir(parents=True)
    Image.new("RGB", (48, 64)).save(second / "below" / "dog.png")
    return first, second


def scanned(window: Window, page: Any) -> None:
    window.wait_until(lambda: not page.model.scans._waiting, "scans")
    window.settle()


@pytest.fixture
def concepts(window: Window, folders: tuple[Path, Path]) -> Any:
    page: Any = window.open_page("concepts")
    assert "drop them here" in page._empty.cget("text")
    assert page._empty.winfo_ismapped()
    window.asked.answers["ask_folders"] = folders
    page.buttons["add"].invoke()
    scanned(window, page)
    return page


def names(window: Window) -> list[str]:
    return [Path(c.path).name for c in window.app.form.config.concepts]


def texts(page: Any) -> list[str]:
    canvas = page.grid.canvas
    return [canvas.itemcget(item, "text") for item in canvas.find_withtag("text")]


def press(page: Any, window: Window, x: int, y: int, sequence: str = "<ButtonPress-1>", **options: Any) -> None:
    page.grid.canvas.event_generate(sequence, x=x, y=y, **options)
    if sequence == "<ButtonPress-1>":
        page.grid.canvas.event_generate("<ButtonRelease-1>", x=x, y=y, **options)
    window.settle()


def test_cards_show_images_captions_and_problems(window: Window, concepts: Any, folders: tuple[Path, Path]) -> None:
    assert [c.path for c in window.app.form.config.concepts] == [str(f) for f in folders]
    assert texts(concepts) == [
        "cats", "Training · 3 images", "2 files skipped and 1 more", "dogs", "Training · 0 images", "no images found",
    ]  # fmt: skip
    assert concepts.selected_indices == [0, 1]
    assert concepts._summary.cget("text") == "2 concepts, 3 images in use"
    assert concepts.buttons["add"].style == "plain"
    window.wait_until(lambda: concepts.grid.canvas.find_withtag("photo"), "thumbnails")
    assert "more folders" in concepts._empty.cget("text")
    assert "2 without a caption" in concepts.model.tip(0)
    drop(concepts.grid.canvas, folders[0] / "cat_0.png", folders[0] / "cat_1.png")
    assert names(window)[2:] == ["cats"]
    concepts.filter_bar.state.set("problems")
    concepts.filter_bar.text.set("dog")
    window.wait_until(lambda: len(concepts.grid.cards) == 1, "the filter")
    assert concepts.filter_bar.count.cget("text") == "1 of 3 shown"
    concepts.filter_bar.disable.invoke()
    assert [c.enabled for c in window.app.form.config.concepts] == [True, False, True]
    concepts.filter_bar.text.set("nothing like it")
    window.wait_until(lambda: concepts._empty.cget("text").startswith("No concept matches"), "the note")
    concepts.filter_bar.clear_button.invoke()
    window.wait_until(lambda: len(concepts.grid.cards) == 3, "all cards")
    assert concepts.filter_bar.count.cget("text") == "1 disabled"


def centre_of(grid: Any, number: int) -> tuple[int, int]:
    """Return the middle of a card on the canvas."""
    layout, (x, y) = grid.layout(), grid.place_of(number)
    return x + layout.cell_width // 2, y + layout.cell_height // 2


def test_the_gaps_between_the_images_of_a_card_follow_the_mode(
    window: Window, concepts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stayed dark in light mode."""
    gaps: list[str] = []

    def collage_with(paths: Any, width: int, height: int, *, gap_colour: str, cache: Any) -> Image.Image:
        gaps.append(gap_colour)
        return Image.new("RGB", (width, height))

    window.wait_until(lambda: concepts.grid.canvas.find_withtag("photo"), "the thumbnails in the dark mode")
    assert not concepts.grid.photos._jobs
    monkeypatch.setattr("ui.features.concepts.page.collage", collage_with)
    window.app.preferences.change(appearance="light")
    window.wait_until(lambda: gaps, "the images again")
    assert set(gaps) == {Theme("light").colour("card")}
    window.app.preferences.change(appearance="dark")


def test_cards_by_pointer_and_keys(window: Window, concepts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    form, grid, canvas = window.app.form, concepts.grid, concepts.grid.canvas
    press(concepts, window, *centre_of(grid, 1))
    assert concepts.selected_indices == [1]
    press(concepts, window, *centre_of(grid, 0), state=0x4)
    assert concepts.selected_indices == [0, 1]
    press(concepts, window, *grid.switch_of(0))
    assert [c.enabled for c in form.config.concepts] == [False, True]
    press(concepts, window, *grid.switch_of(0))
    assert form.config.concepts[0].enabled
    concepts.select([0])
    concepts.buttons["clone"].invoke()
    window.settle()
    assert names(window) == ["cats", "cats", "dogs"]
    assert concepts.selected_indices == [1]
    assert form.config.concepts[1].seed is not None
    x, y = centre_of(grid, 2)
    canvas.event_generate("<ButtonPress-1>", x=x, y=y)
    target_x, target_y = centre_of(grid, 0)
    canvas.event_generate("<B1-Motion>", x=target_x - 60, y=target_y)
    window.settle()
    assert canvas.find_withtag("target")
    canvas.event_generate("<ButtonRelease-1>", x=target_x - 60, y=target_y)
    window.settle()
    assert names(window) == ["dogs", "cats", "cats"]
    assert concepts.selected_indices == [0]
    canvas.focus_force()
    for key in ("<Right>", "<Alt-Right>"):
        canvas.event_generate(key)
        window.settle()
    assert concepts.selected_indices == [2]
    concepts.buttons["earlier"].invoke()
    assert concepts.selected_indices == [1]
    canvas.event_generate("<Delete>")
    window.settle()
    assert names(window) == ["dogs", "cats"]
    assert concepts.undo_bar.winfo_ismapped()
    concepts.undo_bar.button.invoke()
    window.settle()
    assert names(window) == ["dogs", "cats", "cats"]
    assert not concepts.undo_bar.winfo_ismapped()
    canvas.event_generate("<Control-a>")
    canvas.event_generate("<space>")
    assert [c.enabled for c in form.config.concepts] == [False, False, False]
    edited: list[int] = []
    opening = "ui.features.captions.opening.open_caption_editor"
    monkeypatch.setattr(opening, lambda _context, number, _image: edited.append(number))
    concepts.menu().invoke("Captions and masks…")
    assert edited == [0]
    concepts.menu().invoke("Open folder")
    assert window.asked.asked("open_path")
    for _ in range(2):
        press(concepts, window, *centre_of(grid, 1))
    assert concepts.editor.path == "concepts.1"


@pytest.mark.full
def test_many_concepts_draw_only_what_is_visible(window: Window, tmp_path: Path) -> None:
    window.app.form.edit("concepts", tuple(Concept(name=str(n), path=str(tmp_path)) for n in range(400)))
    begun = time.process_time()  # which other programs do not delay
    page: Any = window.open_page("concepts")
    scanned(window, page)
    assert time.process_time() - begun < 15  # a guard against the quadratic, not a measurement
    assert len(page.grid.cards) == 400
    assert len(page.grid.canvas.find_withtag("card")) < 20
    page.select([399])
    window.settle()
    assert "399" in texts(page)
    page.model.toggle(page.selected_indices)
    assert window.app.form.config.concepts[399].enabled is False


def test_scanning_is_stopped_and_begun_again(
    window: Window, concepts: Any, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    scans, bar = concepts.model.scans, concepts.scan_bar
    held = Background()
    monkeypatch.setattr(held, "_submit", lambda job: job)  # which then never ends
    with monkeypatch.context() as patch:
        patch.setattr(scans, "_background", held)
        concepts.model.add_folders([folders[0].parent])
        scans._report_progress(window.app.form.config.concepts[2], "scanning", 300, 20_000)
        window.wait_until(lambda: "300 of 20,000 images" in bar.text.cget("text"), "the progress")
        bar.button.invoke()
        window.wait_until(lambda: "stopped" in bar.text.cget("text"), "the stop")
        window.wait_until(lambda: concepts.model.cards[2].figures != "scanning…", "the card")
        assert concepts.model.cards[2].figures == "not scanned"
    bar.button.invoke()
    scanned(window, concepts)
    assert not bar.winfo_ismapped()
    assert concepts.model.cards[2].figures == "0 images"


@pytest.mark.full
def test_the_editor_shows_fields_images_and_what_is_skipped(window: Window, concepts: Any) -> None:
    editor = concepts.edit(0)
    window.settle()
    general = editor.tabs["General"]
    assert general.summary.cget("text") == "3 images, 2 without a caption"
    assert [t.caption for t in general.grid_view.tiles] == ["a cat that sits", "(no caption)", "(no caption)"]
    assert "broken.png: not a readable image" in general.skipped.cget("text")
    assert "empty.jpg: an empty file" in general.skipped.cget("text")
    grid = general.grid_view
    window.wait_until(lambda: all((t.path, grid.layout().cell_width) in grid.photos for t in grid.tiles), "thumbnails")
    seen = 0
    for title in ("General", "Augmentation", "Text"):
        editor.show(title)
        window.settle()
        for path in [row.record.path for row in editor.form_view.rows()]:
            row = editor.form_view.reveal(path)
            window.app.root.update()
            assert shown_by(row) == expected(row.record, window.app.form.value(path))
            wanted = change(row)
            if wanted is None:  # a choice of one
                continue
            assert window.app.form.value(path) == wanted, path
            window.app.form.undo()
            window.app.root.update()
            seen += 1
    assert seen > 45
    text = window.app.form.value("concepts.0.text")
    editor.show("General")
    window.app.form.edit("concepts.0.text", text.model_copy(update={"trigger_word": "sks", "prefix": "photo of"}))
    window.settle()
    assert [t.caption for t in grid.tiles] == ["photo of sks, a cat that sits", "photo of sks", "photo of sks"]
    assert "as they are trained, after wildcards, replacements" in general.summary.cget("text")


@pytest.mark.full
def test_the_tabs_of_the_editor(window: Window, concepts: Any, folders: tuple[Path, Path]) -> None:
    form = window.app.form
    form.edit("concepts.0.image.flip", "always")
    editor = concepts.edit(0)
    augmentation = editor.show("Augmentation")
    window.wait_until(lambda: augmentation.model.content, "the preview")
    window.settle()
    assert augmentation.caption.cget("text") == "Caption: a cat that sits"
    assert "Flipped" in augmentation.changes.cget("text")
    assert augmentation.original.find_withtag("outline")
    augmentation.buttons["image next"].invoke()
    window.wait_until(lambda: augmentation.image_text.cget("text") == "image 2 of 3", "the next image")
    form.edit("concepts.0.image.flip", "off")
    window.wait_until(lambda: "No augmentation" in augmentation.changes.cget("text"), "the preview of the edit")
    text = editor.show("Text")
    form.edit("concepts.0.text.prefix", "photo of")
    window.wait_until(lambda: "1.  photo of a cat that sits" in text.trained.cget("text"), "captions")
    statistics = editor.show("Statistics")
    window.wait_until(lambda: statistics.task.result, "statistics")
    window.settle()
    assert statistics.figures.tree.item("0", "values") == ("3",)
    assert statistics.buckets.find_withtag("bar")
    assert len(statistics.sizes.find_withtag("point")) == 1
    statistics.search.set("cat")
    window.wait_until(lambda: statistics.tag_text.cget("text").startswith("1 tag"), "tags")
    doctor = editor.show("Doctor")
    window.wait_until(lambda: doctor.task.result, "findings")
    window.settle()
    assert "broken.png" in str(doctor.table.tree.item("0", "values"))
    doctor.fix_buttons["set_aside"].invoke()
    assert (folders[0] / "broken.png").exists(), "not confirmed"
    assert "broken.png → .set-aside/broken.png" in window.asked.asked("choose")[-1][1]
    window.asked.answers["choose"] = "apply"
    doctor.fix("set_aside")
    assert not (folders[0] / "broken.png").exists()
    window.wait_until(lambda: "set_aside" not in doctor.fix_buttons and doctor.undo_button.winfo_ismapped(), "a look")
    doctor.undo_button.invoke()
    assert (folders[0] / "broken.png").exists()
    window.wait_until(lambda: "set_aside" in doctor.fix_buttons, "another look")
    assert editor.show_field("concepts.0.text.suffix")
    assert editor.open_tab == "Text"
    editor._go(1)
    window.settle()
    assert (concepts.editor.path, concepts.editor.open_tab) == ("concepts.1", "Text")
    root = window.app.root
    before = len(root.winfo_children()), len(form._watchers), len(form.changed._listeners)
    for title in ("Statistics", "Doctor", "Augmentation"):
        concepts.edit(1).show(title)
        root.update()
    concepts._close_editor()
    concepts.edit(1).show("Text")
    window.settle()
    assert (len(root.winfo_children()), len(form._watchers), len(form.changed._listeners)) == before


def test_the_editor_follows_the_folder_and_the_list(window: Window, concepts: Any, tmp_path: Path) -> None:
    assert window.app.context.navigation.go_to("concepts.1.path")
    window.settle()
    editor, general = concepts.editor, concepts.editor.tabs["General"]
    assert (editor.path, concepts.selected_indices) == ("concepts.1", [1])
    assert general.summary.cget("text") == "0 images"
    flip(inside(editor.form_view.reveal("concepts.1.include_subfolders").control.frame, Switch))
    window.wait_until(lambda: general.summary.cget("text").startswith("1 image"))
    fill(inside(editor.form_view.reveal("concepts.1.path").control.frame, Entry), "/nowhere")
    window.wait_until(lambda: general.summary.cget("text") == "Folder not found.")
    window.wait_until(lambda: "folder not found" in texts(concepts), "the card")
    editor = concepts.edit(0)
    general = editor.tabs["General"]
    window.app.form.edit("concepts.0.kind", "prompts")
    window.wait_until(lambda: general.summary.cget("text") == "1 prompt")
    window.settle()
    assert general.prompts.cget("text") == "a cat that sits"
    assert general.prompts.winfo_ismapped()
    assert not general.grid_view.winfo_ismapped()
    window.wait_until(lambda: "Prompts · 1 prompt" in texts(concepts), "the card")
    window.app.form.edit("concepts.0.kind", "training")
    window.wait_until(lambda: general.summary.cget("text").startswith("3 images"))
    window.settle()
    assert general.grid_view.winfo_ismapped()
    general.open_image(0)
    viewer = next(w for w in window.app.root.winfo_children() if isinstance(w, ImageViewer))
    window.wait_until(lambda: viewer._photo is not None, "the image")
    assert (viewer.place_text.cget("text"), viewer.caption.cget("text")) == ("1 of 3", "cat_0.png\na cat that sits")
    viewer.focus_force()
    window.app.root.update()
    viewer.event_generate("<Right>")
    assert viewer.place_text.cget("text") == "2 of 3"
    viewer.event_generate("<Left>")
    viewer.event_generate("<Left>")
    assert viewer.index == 0
    viewer.event_generate("<Escape>")
    assert not viewer.winfo_exists()
    items.remove(window.app.form, "concepts", [1])
    window.wait_until(lambda: not editor.winfo_exists())
    assert window.app.context.navigation.go_to("concepts")
    shard = draw_shard(tmp_path / "a.tar", sizes=[(64, 64)] * 2)
    concepts.model.add_folders([shard])
    assert names(window)[-1] == "a.tar"
    general = concepts.edit(1).tabs["General"]
    window.wait_until(lambda: general.summary.cget("text").startswith("2 images"))


def test_the_hardest_images_are_named_where_none_stands_out() -> None:
    images = tuple(SourceImage(Path("/cats"), name, 64, 64, 1, 1, ()) for name in ("b.png", "a.png"))
    losses = {
        i.path_text: ImageLoss(i.path_text, "cats", "training", "", 1, (0.1,), times)
        for i, times in zip(images, (1.4, 0.9), strict=True)
    }
    assert ConceptLosses(300, "run 1", images, losses).summary == (
        "Losses after step 300 of run 1: none stands out. "
        "The hardest are b.png and a.png, with 0.9 to 1.4 times the usual loss."
    )


def test_images_by_loss_are_marked_excluded_and_used_again(
    window: Window, concepts: Any, folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form, context = window.app.form, window.app.context
    form.edit("general.workspace_dir", str(tmp_path / "workspace"))
    measured = [
        ImageLoss(str(folders[0] / f"cat_{n}.png"), "cats", "training", "", 1, (0.1,), times, verdict)
        for n, times, verdict in ((1, 3.84, "high"), (0, 0.97, ""))
    ]
    measured[1] = replace(measured[1], same_as=str(folders[0] / "cat_2.png"))
    older, damaged = (tmp_path / "workspace" / "runs" / f"2026-01-0{n}_10-00-00" for n in (1, 2))
    write_report(older, ImageReport(300, (500,), tuple(measured)), lambda _path: b"")
    (damaged / "report" / "step-00000009").mkdir(parents=True)
    (damaged / "report" / "step-00000009" / "images.json").write_text('{"step": Infinity, "images": []}')
    context.links.show_losses([folders[0] / "cat_1.png"])  # as on the Run page
    general = concepts.editor.tabs["General"]
    window.wait_until(lambda: general.order_row.winfo_ismapped() and len(general.grid_view.tiles) == 3, "the losses")
    assert str(focused_widget(window.app.root)).startswith(str(concepts.editor)), "Escape closes it"
    tiles = general.grid_view.tiles
    badges = [("cat_1.png", "high loss"), ("cat_0.png", "near duplicate"), ("cat_2.png", "")]
    assert [(t.path.name, t.badge) for t in tiles] == badges
    assert tiles[1].caption == "the usual loss, near duplicate of cat_2.png · a cat that sits"
    assert tiles[0].caption == "3.8 times the usual loss · (no caption)"
    assert general.losses.cget("text") == (
        f"Losses after step 300 of {older.name}: 1 stands out; 1 image was not measured."
    )
    general.open_image(0)
    viewer = next(w for w in window.app.root.winfo_children() if isinstance(w, ImageViewer))
    assert viewer.caption.cget("text") == "cat_1.png, 3.8 times the usual loss\n(no caption)"
    opened: list[Any] = []
    monkeypatch.setattr("ui.features.captions.opening.open_caption_editor", lambda *args: opened.append(args[1:]))
    viewer.buttons[0].invoke()
    assert opened == [(0, folders[0] / "cat_1.png")]
    viewer.buttons[1].invoke()
    assert form.value("concepts.0.excluded") == "cat_1.png"
    assert viewer.buttons[1].cget("text") == "Use again"
    window.wait_until(lambda: general.summary.cget("text").startswith("2 images, 1 excluded"), "the scan")
    window.wait_until(lambda: general.grid_view.tiles[0].badge == "excluded", "its mark, at the same place")
    window.wait_until(lambda: "Training · 2 images, 1 excluded" in texts(concepts), "the card")
    assert (folders[0] / "cat_1.png").exists()
    viewer.buttons[1].invoke()
    assert form.value("concepts.0.excluded") == ""
    viewer.close()
    general.order.set("name")
    window.wait_until(
        lambda: [t.badge for t in general.grid_view.tiles] == ["near duplicate", "high loss", ""], "the other order"
    )
    assert len(concepts.model.scans._records) == 2, "no scans with other exclusions are kept"
    form.edit("concepts.0.path", str(folders[1] / "below"))
    window.wait_until(lambda: general.summary.cget("text").startswith("1 image,"), "the other folder")
    window.wait_until(lambda: not general.order_row.winfo_ismapped(), "no report of its images")
    context.links.show_losses([tmp_path / "nowhere.png"])
    assert concepts.editor.tabs["General"] is general


def test_the_last_session_restores_the_concepts(
    window: Window, open_window: Callable[..., Window], concepts: Any
) -> None:
    again = open_window()
    page: Any = again.open_page("concepts")
    window.wait_until(lambda: "cats" in texts(page), "the cards")
    assert again.app.context.navigation.page == "concepts"


def test_reference_images_are_on_the_general_tab(
    window: Window, concepts: Any, folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that edits shows the folder of reference images, and each image with its own; others do not."""
    threads = set[int]()

    def find(*arguments: Any, **named: Any) -> tuple[Path, ...]:
        threads.add(threading.get_ident())
        return find_references(*arguments, **named)

    monkeypatch.setattr(general_tab, "find_references", find)
    form, path = window.app.form, "concepts.0.image.conditioning_folder"
    editor = concepts.edit(0)
    general = editor.tabs["General"]
    window.wait_until(lambda: editor.form_view.is_complete, "the form")
    rows = {row.record.path: row for row in editor.form_view.rows()}
    assert not rows[path].control.frame.winfo_ismapped()
    kontext = next(p for p in list_presets() if "kontext" in p.name).load().config
    form.load(kontext.model_copy(update={"concepts": form.config.concepts}), Source("kontext"))
    window.wait_until(lambda: rows[path].control.frame.winfo_ismapped(), "the field")
    assert [card.group.title for card in editor.form_view.cards if card.num_rows_shown()][1] == "Reference images"
    window.wait_until(lambda: {t.badge for t in general.grid_view.tiles} == {"no reference"}, "the marks")
    before = tmp_path / "before"
    before.mkdir()
    Image.new("RGB", (64, 48), "red").save(before / "cat_1.jpg")
    form.edit(path, str(before))
    marks = ["no reference", "", "no reference"]
    window.wait_until(lambda: [t.badge for t in general.grid_view.tiles] == marks, "the reference of one")
    assert threading.get_ident() not in threads, "a folder on a slow drive would stop the window"
    assert "2 without a reference image" in general.summary.cget("text")
    assert general._load(folders[0] / "cat_1.png", 120).getpixel((12, 12))[0] > 240
    assert general._load(folders[0] / "cat_0.png", 120).getpixel((12, 12))[0] < 240


def test_a_file_of_prompts_is_added_by_a_button(window: Window, concepts: Any, tmp_path: Path) -> None:
    """It could only be dropped."""
    (prompts := tmp_path / "prompts.txt").write_text("a disc\n", encoding="utf-8")
    window.app.form.edit("concepts", ())
    window.settle()
    assert concepts.buttons["add"].style == "primary", "Start was, without images"
    window.app.form.choose_variant("training.method", "grpo")
    window.asked.answers["ask_file"] = prompts
    concepts.buttons["file"].invoke()
    window.settle()
    _, _, [(label, pattern)] = window.asked.asked("ask_file")[-1]
    assert (label, "*.txt" in pattern.split()) == ("Files of prompts", True)
    added = window.app.form.config.concepts[-1]
    assert (from_root(added.path), added.kind) == (prompts, "prompts")
    window.app.form.choose_variant("training.method", "dpo")
    (table := tmp_path / "pairs.csv").write_text("chosen,rejected\n", encoding="utf-8")
    window.asked.answers["ask_file"] = table
    concepts.buttons["file"].invoke()
    window.settle()
    added = window.app.form.config.concepts[-1]
    assert (from_root(added.path), added.kind) == (table, "pairs")


def test_the_search_gives_way_to_the_labels_of_the_filters(window: Window, concepts: Any) -> None:
    """At 150 % on a small screen, "Enable shown" had lost its ends."""
    theme, bar = (
        window.app.context.theme,
        FilterBar(window.app.root, window.app.context, concepts.kinds, lambda: None, lambda *, to: None),
    )
    for is_open, state in ((True, "all"), (False, "problems")):
        for width in (470, 620, 900):
            bar.place(x=0, y=0, width=theme.px(width))
            bar.state.set(state)
            bar.show_count(2, 3, 0)
            window.app.root.update()
            assert bar.clear_button.winfo_ismapped() != is_open
            assert bar.enable.winfo_ismapped()
            assert cut_off(bar, (bar.entry,)) == [], width
            assert bar.disable.winfo_rootx() + bar.disable.winfo_width() <= bar.winfo_rootx() + bar.winfo_width()
            assert bar.entry.winfo_width() >= theme.px(60), width
            is_below = bar.enable.winfo_rooty() > bar.entry.winfo_rooty() + bar.entry.winfo_height()
            assert width == 620 or is_below == (width == 470), width
    assert bar.entry.winfo_width() <= theme.px(200)
    bar.destroy()


def test_what_comes_before_an_editor_without_its_concept_closes_does_nothing(
    window: Window, concepts: Any, tmp_path: Path
) -> None:
    """The next concept was opened that was not there, and what was found about images shown for none."""
    editor, form = concepts.edit(0), window.app.form
    window.settle()
    general, statistics = editor.tabs["General"], editor.show("Statistics")
    editor.show("General")
    window.wait_until(lambda: general._images, "the images")
    general.open_image(0)
    viewer = general._viewer
    assert viewer.winfo_exists()
    folder = next(row for row in editor.form_view.rows() if row.record.path == "concepts.0.path")
    window.asked.answers["ask_folder"] = tmp_path
    form.edit("concepts", ())
    assert not viewer.winfo_exists(), "a click on it would be an internal error"
    editor._go(1)
    general.open_image(0)
    assert general._viewer is None
    general._keep_references(frozenset())
    statistics._follow()
    next(w for w in walk(folder.control.frame) if isinstance(w, Button)).invoke()
    assert form.config.concepts == ()
    window.wait_until(lambda: not editor.winfo_exists(), "the end of the editor")


def test_the_large_image_closes_when_its_place_gets_another_folder(
    window: Window, concepts: Any, tmp_path: Path
) -> None:
    """Exclude would be for the other one."""
    editor, form = concepts.edit(0), window.app.form
    general = editor.tabs["General"]
    window.wait_until(lambda: general._images, "the images")
    general.open_image(0)
    viewer = general._viewer
    form.edit("concepts.0.excluded", "a")
    assert viewer.winfo_exists()
    form.edit("concepts.0.path", str(tmp_path))
    assert not viewer.winfo_exists()
    editor.close()


def test_an_editor_whose_concept_goes_closes_once_and_leaves_nothing_to_draw(window: Window, concepts: Any) -> None:
    editor = concepts.edit(0)
    for title in editor.tabs.copy() | {"Statistics": None}:
        editor.show(title)
        window.settle()
    views = list(editor.forms.values())
    window.app.form.edit("concepts", ())
    for _ in range(2):  # two changes before the window is idle
        editor._follow()
    window.app.root.update_idletasks()  # as a control does while it is built
    assert editor.winfo_exists(), "it would go while its form is built"
    window.wait_until(lambda: not editor.winfo_exists(), "the end of the editor")
    assert not {(view, "width") for view in views} & set(window.app.context.pump._redraws)
    window.settle()
