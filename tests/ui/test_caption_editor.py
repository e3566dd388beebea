"""The caption and mask editor in a real window, with real pointer and key events, and its automatic captions."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from modules.data.concept import Concept
from tests.ui.conftest import Window
from tests.ui.driving import walk
from tests.ui.real_input import click, keys, xdotool
from trainer.child.process import spawn_python
from ui.features.captions.editor import CaptionEditor
from ui.features.captions.image_set import Source, read_images
from ui.features.captions.opening import open_caption_editor
from ui.features.captions.session import EditorSession, load_image
from ui.features.captions.strokes import Brush
from ui.forms import items
from ui.widgets.controls import Button

_CHILD = """
import sys
from pathlib import Path
from trainer.event_lines import to_line
from trainer.job_events import ImageAnnotated, JobProgress, JobStopped
folder = Path(sys.argv[1])
assert '"job": "caption"' in sys.stdin.readline()
folder.joinpath("c.txt").write_text("written, by a model")
print(to_line(ImageAnnotated(str(folder / "c.png"), True, "written, by a model")), flush=True)
print(to_line(JobProgress("captions", 1, 3, 120.0)), flush=True)
sys.stdin.readline()
print(to_line(JobStopped("Stopped. 1 caption written.")), flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "images"
    place.mkdir()
    for number, name in enumerate("abc"):
        Image.effect_noise((240, 160), 20 + 40 * number).convert("RGB").save(place / f"{name}.png")
    (place / "a.txt").write_bytes(b"red cat, sitting\r\na cat that sits\r\n")
    (place / "b.txt").write_text("cat, blue sky")
    return place


def opened_editor(window: Window, folder: Path) -> CaptionEditor:
    """Open the editor by its button on the Concepts page."""
    context = window.app.context
    items.add(context.form, "concepts", [Concept(path=str(folder))])
    page: Any = window.open_page("concepts")
    click(window, next(w for w in walk(page.frame) if isinstance(w, Button) and w.cget("text").startswith("Captions")))
    window.wait_until(lambda: editors(window), "the editor")
    editor = editors(window)[0]
    assert editor.focus_lastfor() is editor.caption_panel.text  # ready to write
    editor.geometry("800x600+0+0")  # the whole screen of the tests
    editor.focus_force()  # as a window manager does
    window.wait_until(
        lambda: editor.model.session.mask is not None and editor.canvas.image is not None, "the first image"
    )
    window.settle()
    return editor


def test_the_editor_opens_at_an_image(window: Window, folder: Path) -> None:
    context = window.app.context
    items.add(context.form, "concepts", [Concept(path=str(folder))])
    for name in ("b.png", "c.png"):  # in a new editor, and in the open one
        context.links.edit_captions(0, folder / name)
        model = editors(window)[0].model
        window.wait_until(lambda m=model, n=name: m.session.current == folder / n, "the image")
    editors(window)[0].close()


def test_the_captions_that_are_written_can_be_used_in_place_of_one_for_all(window: Window, folder: Path) -> None:
    """Captions had no effect on such a concept, and only its own editor could change that."""
    context = window.app.context
    concept = Concept(path=str(folder), caption_source="fixed_text", fixed_caption="a photo of zog")
    items.add(context.form, "concepts", [concept])
    context.links.edit_captions(0, folder / "b.png")
    [editor] = editors(window)
    window.wait_until(lambda: editor.model.session.current == folder / "b.png", "the image")
    window.wait_until(editor.side.offers["use_files"].winfo_ismapped, "the offer")
    assert "are not used" in editor.note.cget("text")
    editor.side.offers["use_files"].invoke()
    window.wait_until(lambda: not editor.side.offers["use_files"].winfo_ismapped(), "the end of the offer")
    assert context.form.config.concepts[0].caption_source == "text_file"
    window.wait_until(lambda: editor.model.session.current == folder / "b.png", "the same image")
    assert editor.note.cget("text") == ""
    editor.close()


def test_masked_training_is_offered_where_a_mask_is_not_used(window: Window, folder: Path) -> None:
    """Who drew masks found out after the run that it had not used them."""
    context = window.app.context
    items.add(context.form, "concepts", [Concept(path=str(folder))])
    context.links.edit_captions(0, folder / "b.png")
    [editor] = editors(window)
    window.wait_until(lambda: editor.model.session.mask is not None, "the image")
    offer = editor.side.offers["use_masks"]
    window.settle()
    assert not offer.winfo_ismapped()
    editor.tool_bar.buttons["white"].invoke()
    window.wait_until(offer.winfo_ismapped, "the offer")
    assert "Masked training is off" in editor.note.cget("text")
    offer.invoke()
    window.settle()
    assert context.form.config.masks.enabled
    assert not offer.winfo_ismapped()
    assert editor.note.cget("text") == ""
    editor.close()


def editors(window: Window) -> list[CaptionEditor]:
    return [w for w in window.app.root.winfo_children() if isinstance(w, CaptionEditor)]


def at(editor: CaptionEditor, x: float, y: float) -> tuple[str, str]:
    """The place on the screen of a point of the image."""
    view, canvas = editor.canvas.viewport, editor.canvas
    left = canvas.winfo_rootx() + round(view.left + x * view.zoom)
    return str(left), str(canvas.winfo_rooty() + round(view.top + y * view.zoom))


def draw(window: Window, editor: CaptionEditor, *points: tuple[float, float]) -> None:
    """Draw with the left button through points of the image."""
    xdotool("mousemove", *at(editor, *points[0]))
    window.settle()
    xdotool("mousedown", "1")
    for point in points:
        xdotool("mousemove", *at(editor, *point))
        window.settle()
    xdotool("mouseup", "1")
    window.wait_until(lambda: not editor.canvas.is_drawing, "the end of the stroke")


@pytest.mark.full
def test_captions_and_masks_are_edited_and_saved_on_leaving(window: Window, folder: Path) -> None:
    editor = opened_editor(window, folder)
    session, panel = editor.model.session, editor.caption_panel
    assert panel.chips.tags == ("red cat", "sitting")
    click(window, panel.entry)
    xdotool("type", "blu")
    window.wait_until(lambda: panel.list.size() == 1, "the suggestion")
    keys(window, "Down", "Return")
    window.wait_until(lambda: panel.chips.tags == ("red cat", "sitting", "blue sky"), "the tag")
    left, top = panel.chips.place_of(0, cross=True)
    canvas = panel.chips.canvas
    xdotool("mousemove", str(canvas.winfo_rootx() + left), str(canvas.winfo_rooty() + top), "click", "1")
    window.wait_until(lambda: panel.chips.tags == ("sitting", "blue sky"), "the tag to go")
    assert (folder / "a.txt").read_bytes() == b"red cat, sitting\r\na cat that sits\r\n"
    assert "Saved when" in editor.status.cget("text")

    click(window, editor.tool_bar.tools["brush"])
    editor.canvas.set_brush(20)
    draw(window, editor, (60, 40), (180, 40), (180, 120), (60, 120), (60, 40))
    keys(window, "f")
    xdotool("mousemove", *at(editor, 120, 80), "click", "1")
    mask = session.mask
    assert mask is not None
    window.wait_until(lambda: mask.pixels[80, 120] == 255, "the fill")
    keys(window, "ctrl+z")
    window.wait_until(lambda: mask.pixels[80, 120] == 0, "the undo")
    keys(window, "ctrl+shift+z")
    window.wait_until(lambda: mask.pixels[80, 120] == 255, "the redo")
    fitted = editor.canvas.viewport.zoom
    xdotool("mousemove", *at(editor, 120, 80), "click", "4")
    window.wait_until(lambda: editor.canvas.viewport.zoom == pytest.approx(1.2 * fitted), "the zoom")

    keys(window, "Next")
    window.wait_until(lambda: session.current == folder / "b.png", "the next image")
    assert (folder / "a.txt").read_bytes() == b"sitting, blue sky\r\na cat that sits\r\n"
    with Image.open(folder / "a-masklabel.png") as saved:
        assert (saved.mode, saved.size) == ("L", (240, 160))
        assert np.array_equal(np.asarray(saved), mask_of(folder))
        assert saved.getpixel((2, 2)) == 0
    assert editor.list_panel.count.cget("text") == "3 images, 2 captions, 1 mask"
    editor.canvas.set_tool("move")
    click(window, editor.buttons["next"])
    assert (session.current, editor.focus_lastfor()) == (folder / "c.png", panel.text)
    assert panel.hint.winfo_ismapped()  # what an empty caption is for
    click(window, editor.buttons["previous"])
    assert not panel.hint.winfo_ismapped()
    _conflicts(window, editor, folder)
    _replaces(window, editor, folder)
    _annotates(window, editor, folder)
    assert open_caption_editor(window.app.context, 0) is editor  # it is shown again
    editor.close()
    assert not editors(window)
    _leaves_nothing(window)


def _leaves_nothing(window: Window) -> None:
    """Opening and closing all windows of the editor leaves no variable and no command behind."""
    tcl, kept = window.app.root.tk, []
    for _ in range(4):  # a timer that waits is a command, too: what is left behind grows each time
        _open_and_close_all(window)
        window.settle()
        gc.collect()
        kept.append([len(tcl.splitlist(tcl.call("info", what))) for what in ("commands", "vars")])
        if len(kept) > 1 and all(now <= before for before, now in zip(*kept[-2:], strict=True)):
            return
    raise AssertionError(kept)


def _open_and_close_all(window: Window) -> None:
    editor = open_caption_editor(window.app.context)
    assert editor is not None
    window.wait_until(
        lambda: editor.model.session.mask is not None and editor.model._reading is None, "the first image"
    )
    editor.open_masks()
    editor.open_replace()
    replacing = editor.replace_window
    assert replacing is not None
    window.wait_until(lambda: replacing._job is None, "the search")
    editor.close()


def mask_of(folder: Path) -> Any:
    loaded = load_image(folder / "a.png", (folder / "a-masklabel.png",))
    assert loaded.mask is not None
    return loaded.mask.pixels


def _conflicts(window: Window, editor: CaptionEditor, folder: Path) -> None:
    """A file that another program changes is shown, or is a question; nothing is overwritten unseen."""
    session, panel = editor.model.session, editor.caption_panel
    (folder / "b.txt").write_text("theirs")
    editor.event_generate("<FocusIn>")
    window.wait_until(lambda: panel.chips.tags == ("theirs",), "their text")
    panel.add_tag("mine")
    (folder / "b.txt").write_text("theirs again")
    window.asked.answers["choose"] = "stay"
    editor.model.step(1)
    assert session.current == folder / "b.png"
    assert (folder / "b.txt").read_text() == "theirs again"
    window.asked.answers["choose"] = "mine"
    assert editor.save()
    assert (folder / "b.txt").read_text() == "theirs, mine"
    editor.model.revert()
    window.settle()
    assert editor.save()
    assert (folder / "b.txt").read_text() == "theirs again"


def _replaces(window: Window, editor: CaptionEditor, folder: Path) -> None:
    before = (folder / "a.txt").read_bytes()
    editor.open_replace()
    replacing = editor.replace_window
    assert replacing is not None
    replacing.find.set("sit(s|ting)")
    replacing.replacement.set("lies")
    replacing.flags["is_regex"].set(True)
    replacing._search_soon()
    window.wait_until(lambda: len(replacing.changes) == 1 and replacing.changes[0].num_matches == 2, "the preview")
    assert replacing.table.tree.item("0")["values"][1].startswith("lies, blue sky")
    replacing.replace()
    window.wait_until(lambda: replacing.last, "the replacement")
    assert (folder / "a.txt").read_bytes() == b"lies, blue sky\r\na cat that lies\r\n"
    assert editor.model.session.set.text_of(folder / "a.png").startswith("lies")
    replacing.undo()
    window.wait_until(lambda: not replacing.last, "the undo")
    assert (folder / "a.txt").read_bytes() == before
    replacing.find.set("(")
    window.wait_until(lambda: "regular expression" in replacing.summary.cget("text"), "the error")
    replacing.close()
    window.settle()


def _annotates(window: Window, editor: CaptionEditor, folder: Path) -> None:
    editor.open_captions()
    writing = editor.annotate_window
    assert writing is not None
    writing.form.set("model", "blip_base")
    assert not writing.form.rows["threshold"].is_shown  # of taggers
    assert writing.form.rows["initial"].is_shown
    assert "Salesforce/blip-image-captioning-base" in writing.help.cget("text")
    writing.runner._spawn = lambda _arguments, errors: spawn_python(["-c", _CHILD, str(folder)], errors)
    window.asked.answers["choose"] = "no"
    writing.start()
    window.wait_until(lambda: writing.start_button.cget("state") == "normal", "the refusal")
    assert not writing.runner.state.is_active
    window.asked.answers["choose"] = "download"
    writing.start()
    window.wait_until(lambda: "1 of 3, 0:02:00 left" in writing.status.cget("text"), "the progress")
    click(window, writing.stop_button)
    window.wait_until(
        lambda: not writing.runner.state.is_active and "1 caption written." in writing.status.cget("text"), "the end"
    )
    window.wait_until(
        lambda: editor.model.session.set.text_of(folder / "c.png") == "written, by a model", "the caption"
    )
    writing.close()
    window.settle()


def session_at(folder: Path) -> EditorSession:
    session = EditorSession(Source(folder, "x"))
    session.list_images(read_images(session.set.source))
    session.open(folder / "a.png")
    session.attach(load_image(folder / "a.png", (folder / "a-masklabel.png",)))
    return session


def test_counts_follow_the_editor_however_it_was_opened(window: Window, folder: Path) -> None:
    """They stayed as they were after an editor that was opened by its shortcut."""
    context = window.app.context
    items.add(context.form, "concepts", [Concept(path=str(folder))])
    page: Any = window.open_page("concepts")
    window.wait_until(lambda: page.model.visible[0].share_captioned == 2 / 3, "the scan")
    context.actions.run("captions")
    window.settle()
    (folder / "c.txt").write_text("a third one")
    editors(window)[0].close()
    window.wait_until(lambda: page.model.visible[0].share_captioned == 1, "another scan")


def test_a_mask_keeps_its_history_while_other_images_are_open(folder: Path) -> None:
    session = session_at(folder)
    assert session.mask is not None
    session.mask.begin_stroke(Brush(255, 9), (50, 50))
    session.mask.end_stroke()
    assert session.is_edited
    assert session.save() == ()
    assert folder / "a.png" in session.set.masked
    session.open(folder / "b.png")
    session.open(folder / "a.png")
    session.attach(load_image(folder / "a.png", (folder / "a-masklabel.png",)))
    assert session.mask.can_undo
    session.mask.undo()
    assert session.mask.is_edited


def test_what_cannot_be_saved_when_the_program_ends_is_kept_elsewhere(folder: Path, tmp_path: Path) -> None:
    session = session_at(folder)
    assert session.caption is not None
    assert session.mask is not None
    session.caption.edit("mine")
    session.mask.invert()
    (folder / "a.txt").write_text("theirs")
    Image.new("L", (240, 160)).save(folder / "a-masklabel.png")
    unsaved = session.save()
    assert [u.part for u in unsaved] == ["caption", "mask"]
    kept = [session.rescue(u, tmp_path / "drafts") for u in unsaved]
    assert kept[0] is not None
    assert kept[0].read_text() == "mine"
    assert kept[1] is not None
    assert kept[1].is_file()
    assert (folder / "a.txt").read_text() == "theirs"
    session.discard(unsaved[0])
    assert session.caption.text == "theirs"


def test_a_caption_that_is_not_text_is_shown_but_not_edited(folder: Path) -> None:
    (folder / "a.txt").write_bytes(b"\xff\xfeodd")
    session = session_at(folder)
    assert "cannot be edited" in session.caption_problem
    (folder / "a.txt").unlink()
    (folder / "a.txt").mkdir()
    session.open(folder / "a.png")
    assert session.caption is None
    assert "cannot be read" in session.caption_problem
