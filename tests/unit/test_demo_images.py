"""The drawn images show what their captions say, and a seed fixes them."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from demo.make.images import (
    FULL_TEMPLATES,
    NUM_ZOG_IMAGES,
    OPEN_TEMPLATES,
    ZOG_TEMPLATES,
    Scene,
    colour_value,
    draw_captioned_image,
    draw_known_images,
    draw_scene,
    draw_varied_image,
    draw_zog_images,
    random_caption,
    random_scene,
    write_caption,
)
from demo.make.shapes import COLOURS, KNOWN_SHAPES, PINK, SHAPES, coverage

ROOT = Path(__file__).parents[2]


def test_the_recipe_has_six_shapes_and_eight_colours() -> None:
    assert len(SHAPES) == 6
    assert len(COLOURS) == 8
    assert set(KNOWN_SHAPES) - set(SHAPES) == {"ring"}


def test_colours_lie_far_apart() -> None:
    values = [*COLOURS.values(), PINK]
    distances = [
        np.linalg.norm(np.subtract(one, other)) for index, one in enumerate(values) for other in values[:index]
    ]
    assert min(distances) > 80


@pytest.mark.parametrize("shape", KNOWN_SHAPES)
def test_coverage_scales_with_the_radius_and_stays_inside_it(shape: str) -> None:
    small = coverage(shape, centre_px=(32, 32), radius_px=10)
    large = coverage(shape, centre_px=(32, 32), radius_px=20)
    assert small.shape == (64, 64)
    assert small.min() >= 0.0
    assert large.max() == 1.0
    assert large.sum() / small.sum() == pytest.approx(4.0, rel=0.03)
    rows, columns = np.nonzero(large)
    assert np.hypot(rows - 31.5, columns - 31.5).max() <= 20 * 1.35


def test_coverage_is_antialiased_and_turns() -> None:
    mask = coverage("circle", centre_px=(32, 32), radius_px=15)
    assert ((mask > 0) & (mask < 1)).any()
    upright = coverage("triangle", centre_px=(32, 32), radius_px=15)
    upside_down = coverage("triangle", centre_px=(32, 32), radius_px=15, turn_rad=np.pi)
    np.testing.assert_allclose(upright[::-1, ::-1], upside_down, atol=0.26)
    assert np.abs(upright - upside_down).sum() > 50


@pytest.mark.parametrize("shape", SHAPES)
def test_a_scene_has_its_colours_and_a_free_border(shape: str) -> None:
    generator = np.random.default_rng(3)
    for colour, ground in [("red", "blue"), ("white", "black"), ("orange", "purple")]:
        image = draw_scene(Scene(shape, colour, ground), generator)
        assert image.shape == (64, 64, 3)
        assert image.dtype == np.uint8
        assert np.abs(image[0, 0].astype(int) - colour_value(ground)).max() <= 11
        assert np.abs(image[32, 32].astype(int) - colour_value(colour)).max() <= 11
        assert (image[[0, -1]] == image[0, 0]).all()
        assert (image[:, [0, -1]] == image[0, 0]).all()


def test_a_scene_that_leaves_a_colour_open_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="both colours"):
        draw_scene(Scene("circle", None, "red"), np.random.default_rng(0))


def test_same_seed_same_images_other_seed_others() -> None:
    first, again, other = (draw_captioned_image(np.random.default_rng(seed)) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first.image_HWC, again.image_HWC)
    assert (first.caption, first.scene) == (again.caption, again.scene)
    assert not np.array_equal(first.image_HWC, other.image_HWC)
    varied = [draw_varied_image(np.random.default_rng(seed)) for seed in (5, 5, 6)]
    np.testing.assert_array_equal(varied[0], varied[1])
    assert not np.array_equal(varied[0], varied[2])


def test_random_scenes_cover_everything_and_never_hide_the_shape() -> None:
    generator = np.random.default_rng(0)
    scenes = [random_scene(generator) for _ in range(3000)]
    assert all(scene.colour != scene.ground for scene in scenes)
    shapes, pairs = Counter(scene.shape for scene in scenes), {(scene.colour, scene.ground) for scene in scenes}
    assert set(shapes) == set(SHAPES)
    assert min(shapes.values()) > 400
    assert len(pairs) == 56


def test_captions_name_what_is_drawn_in_varied_places() -> None:
    scene = Scene("star", "orange", "blue")
    texts = [write_caption(scene, template) for template in FULL_TEMPLATES]
    assert texts[0] == "an orange star on a blue ground"
    assert all(word in text for text in texts for word in ("star", "orange", "blue", "ground"))
    assert len({text.split().index("star") if "star" in text.split() else -1 for text in texts}) >= 3
    generator = np.random.default_rng(0)
    seen = Counter(random_caption(scene, generator) for _ in range(2000))
    everything = {write_caption(scene, template) for template in (*FULL_TEMPLATES, *OPEN_TEMPLATES)}
    assert set(seen) == everything
    open_share = sum(seen[write_caption(scene, template)] for template in OPEN_TEMPLATES) / 2000
    assert 0.1 < open_share < 0.2


def test_articles_are_fixed() -> None:
    assert write_caption(Scene("circle", "red", "orange"), "a {ground} ground with a {colour} {shape}") == (
        "an orange ground with a red circle"
    )


def test_zog_images(tmp_path: Path) -> None:
    paths = draw_zog_images(tmp_path / "zog")
    assert len(paths) == NUM_ZOG_IMAGES == 12
    captions = [path.with_suffix(".txt").read_text(encoding="utf-8").strip() for path in paths]
    assert captions[0] == "a zog on a red ground"
    assert all("zog" in caption and "ring" not in caption and "pink" not in caption for caption in captions)
    assert len({caption.split().index("zog") for caption in captions}) >= 2
    for ground in COLOURS:
        assert any(f"{ground} ground" in caption for caption in captions)
    for path, caption in zip(paths, captions, strict=True):
        with Image.open(path) as image:
            assert (image.size, image.mode) == ((64, 64), "RGB")
            corner = np.asarray(image)[0, 0].astype(int)
        ground = next(name for name in COLOURS if f"{name} ground" in caption)
        assert np.abs(corner - colour_value(ground)).max() <= 11
    assert len(ZOG_TEMPLATES) >= 3


@pytest.mark.parametrize(
    ("folder", "draw"),
    [
        ("zog", draw_zog_images),
        ("zog_unseen", partial(draw_zog_images, seed=1, num_images=8)),
        ("shapes", draw_known_images),
    ],
)
def test_committed_images_are_the_drawn_ones(tmp_path: Path, folder: str, draw: Callable[[Path], list[Path]]) -> None:
    drawn_ones = draw(tmp_path)
    assert {p.name for p in drawn_ones} == {p.name for p in (ROOT / "demo" / folder).glob("*.png")}
    for path in drawn_ones:
        committed = ROOT / "demo" / folder / path.name
        with Image.open(path) as drawn, Image.open(committed) as kept:
            np.testing.assert_array_equal(np.asarray(drawn), np.asarray(kept))
        assert path.with_suffix(".txt").read_text("utf-8") == committed.with_suffix(".txt").read_text("utf-8")


def test_images_need_no_torch() -> None:
    code = (
        "import sys; import demo.make.images, demo.make.evaluator; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'diffusers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
