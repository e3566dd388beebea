"""The model of the mask editor: strokes, fills, undo, and the file that the trainer reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from modules.data.companions import find_mask
from modules.data.transforms.geometry import Box
from ui.features.captions.document import ConflictError
from ui.features.captions.mask_document import MaskDocument
from ui.features.captions.strokes import Brush, area_around
from ui.features.captions.viewport import ScaledImage, Viewport, shade_mask

POINTS = st.tuples(st.floats(-40, 340), st.floats(-40, 340))
STEPS = st.one_of(
    st.tuples(st.just("stroke"), st.lists(POINTS, min_size=1, max_size=3), st.sampled_from([0, 255])),
    st.tuples(st.just("fill"), POINTS, st.sampled_from([0, 255])),
    st.tuples(st.just("all"), st.none(), st.sampled_from([0, 255])),
    st.tuples(st.just("invert"), st.none(), st.none()),
)


def take(mask: MaskDocument, step: tuple[str, object, int]) -> None:
    kind, where, value = step
    match kind, where:
        case "stroke", [first, *rest]:
            mask.begin_stroke(Brush(value, 30, 0.7), first)
            for point in rest:
                mask.stroke_to(point)
            mask.end_stroke()
        case "fill", (float(x), float(y)):
            mask.fill((x, y), value)
        case "all", _:
            mask.set_all(value)
        case "invert", _:
            mask.invert()


def state(mask: MaskDocument) -> tuple[bool, bytes]:
    return mask.exists, mask.pixels.tobytes()


@given(st.lists(STEPS, max_size=5))
def test_undo_returns_through_every_state_and_redo_forward(steps: list[tuple[str, object, int]]) -> None:
    mask = MaskDocument((Path("nowhere/x-masklabel.png"),), 300, 270)
    states = [state(mask)]
    for step in steps:
        take(mask, step)
        if state(mask) != states[-1]:
            states.append(state(mask))
    assert len(mask.history.done) == len(states) - 1
    for expected in reversed(states[:-1]):
        mask.undo()
        assert state(mask) == expected
    assert not mask.is_edited
    assert mask.undo() is None
    for expected in states[1:]:
        mask.redo()
        assert state(mask) == expected
    assert mask.redo() is None
    assert mask.is_edited == (len(states) > 1)


def test_the_first_white_stroke_starts_black_and_the_first_black_one_white(tmp_path: Path) -> None:
    mask = MaskDocument((tmp_path / "a-masklabel.png",), 64, 48)
    mask.begin_stroke(Brush(255, 5), (20, 20))
    mask.end_stroke()
    assert (mask.pixels[20, 20], mask.pixels[0, 0]) == (255, 0)
    mask.undo()
    assert not mask.exists
    mask.begin_stroke(Brush(0, 5), (20, 20))
    mask.end_stroke()
    assert (mask.pixels[20, 20], mask.pixels[0, 0]) == (0, 255)


def test_the_opacity_of_one_stroke_does_not_add_up(tmp_path: Path) -> None:
    mask = MaskDocument((tmp_path / "a-masklabel.png",), 64, 48)
    mask.set_all(0)
    mask.begin_stroke(Brush(255, 6, 0.5), (10, 20))
    for x in (30, 10, 40):
        mask.stroke_to((x, 20))
    mask.end_stroke()
    assert mask.pixels[20, 20] == 128
    mask.begin_stroke(Brush(255, 6, 0.5), (10, 20))
    mask.stroke_to((40, 20))
    mask.end_stroke()
    assert mask.pixels[20, 20] == 192


def test_a_fill_stays_inside_an_outline_and_leaves_no_seam(tmp_path: Path) -> None:
    mask = MaskDocument((tmp_path / "a-masklabel.png",), 100, 80)
    mask.set_all(0)
    mask.begin_stroke(Brush(255, 3), (20, 20))
    for corner in ((70, 20), (70, 60), (20, 60), (20, 20)):
        mask.stroke_to(corner)
    mask.end_stroke()
    changed = mask.fill((40, 40), 255)
    assert (mask.pixels[20:61, 20:71] == 255).all()
    assert mask.pixels[5, 5] == 0
    assert changed is not None
    assert changed.left_px > 10
    assert mask.fill((400, 40), 255) is None


@given(st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=5, max_size=5), st.data())
def test_an_area_is_what_a_search_pixel_by_pixel_finds(rows: list[list[bool]], data: st.DataObject) -> None:
    mask = np.array(rows, np.uint8) * 255
    start = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 4))
    expected, waiting = set(), [start]
    while waiting:
        x, y = waiting.pop()
        if (x, y) in expected or not (0 <= x < 7 and 0 <= y < 5) or mask[y, x] != mask[start[1], start[0]]:
            continue
        expected.add((x, y))
        waiting += [(x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)]
    ys, xs = np.nonzero(area_around(mask, *start))
    assert set(zip(xs.tolist(), ys.tolist(), strict=True)) == expected


def test_the_file_is_the_one_that_the_trainer_reads(tmp_path: Path) -> None:
    image = tmp_path / "cat.jpg"
    Image.new("RGB", (64, 48)).save(image)
    mask = MaskDocument((tmp_path / "cat-masklabel.png",), 64, 48)
    assert not mask.save()
    mask.begin_stroke(Brush(255, 8), (20, 20))
    mask.end_stroke()
    assert mask.save()
    assert not mask.is_edited
    found = find_mask(image, folder=tmp_path)
    assert found is not None
    with Image.open(found.path) as written:
        assert (written.mode, written.size) == ("L", (64, 48))
        assert np.array_equal(np.asarray(written), mask.pixels)
    again = MaskDocument((mask.path,), 64, 48)
    assert again.exists
    again.invert()
    mask.invert()
    mask.save()
    with pytest.raises(ConflictError):
        again.save()
    mask.undo()
    assert mask.is_edited
    mask.redo()
    assert not mask.is_edited


def test_a_mask_with_the_suffix_of_its_image_is_edited_as_png(tmp_path: Path) -> None:
    Image.new("L", (8, 6), 0).save(tmp_path / "cat.jpg")
    before = (tmp_path / "cat.jpg").read_bytes()
    mask = MaskDocument((tmp_path / "cat.png", tmp_path / "cat.jpg"), 8, 6)
    assert mask.exists
    assert not mask.pixels.any()
    mask.invert()
    assert mask.save()
    assert (tmp_path / "cat.jpg").read_bytes() == before
    with Image.open(tmp_path / "cat.png") as written:
        assert written.getextrema() == (255, 255)


def test_a_mask_of_another_size_is_not_written_unless_it_is_edited(tmp_path: Path) -> None:
    path = tmp_path / "cat-masklabel.png"
    Image.new("RGBA", (8, 6), (255, 255, 255, 255)).save(path)
    before = path.read_bytes()
    mask = MaskDocument((path,), 64, 48)
    assert mask.pixels.shape == (48, 64)
    assert not mask.save()
    assert path.read_bytes() == before


def test_a_parked_mask_keeps_its_history(tmp_path: Path) -> None:
    mask = MaskDocument((tmp_path / "a-masklabel.png",), 300, 20)
    mask.invert()
    mask.save()
    expected = state(mask)
    mask.park()
    assert mask.unpark()
    assert state(mask) == expected
    mask.park()
    mask.path.write_bytes(b"another program's")
    assert not mask.unpark()


@given(st.floats(0.05, 20), st.floats(-50, 450), st.floats(-50, 350))
def test_a_zoom_keeps_the_point_under_the_pointer(factor: float, x: float, y: float) -> None:
    view = Viewport(view_px=(400, 300))
    view.show((1000, 2000))
    for _ in range(3):  # the image is then larger than the view
        view.zoom_at(3, 200, 150)
    before = view.to_image(200, 150)
    view.zoom_at(1.2, 200, 150)
    assert view.to_image(200, 150) == pytest.approx(before)
    view.pan(x, y)
    view.zoom_at(factor, 200, 150)
    whole = view.to_view(Box(0, 0, 1000, 2000))
    assert whole.right_px > whole.left_px
    view.fit()
    assert view.zoom == pytest.approx(0.15)


def test_any_part_of_a_view_is_the_part_of_the_whole(tmp_path: Path) -> None:
    image = Image.effect_noise((1300, 1100), 60).convert("RGB")
    scaled = ScaledImage(image)
    view = Viewport(view_px=(500, 400))
    view.show(image.size)
    for zoom in (1.0, 4.0, 3.0):
        view.zoom_at(zoom, 100, 100)
        whole = np.asarray(scaled.part(view, Box(0, 0, 500, 400), (1, 2, 3)), np.int16)
        part = np.asarray(scaled.part(view, Box(120, 60, 260, 300), (1, 2, 3)), np.int16)
        assert np.abs(whole[60:300, 120:260] - part).max() <= 12
    white, black = Image.new("L", (4, 4), 255), Image.new("L", (4, 4))
    small = image.crop((0, 0, 4, 4))
    assert shade_mask(small, white, (9, 9, 9)).tobytes() == small.tobytes()
    assert shade_mask(small, black, (9, 9, 9)).tobytes() != small.tobytes()
