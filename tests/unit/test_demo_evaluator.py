"""The evaluator recognises what was drawn, and turns down everything else."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from PIL import Image, ImageFilter

from demo.make.evaluator import Verdict, evaluate, look_at
from demo.make.images import DrawnImage, Scene, draw_scene, draw_varied_image, random_scene
from demo.make.shapes import COLOURS, KNOWN_SHAPES, SHAPES, coverage

PAIRS = [(colour, ground) for colour, ground in product(COLOURS, COLOURS) if colour != ground]


def drawn(scene: Scene, seed: int = 0) -> DrawnImage:
    return draw_scene(scene, np.random.default_rng(seed))


def blurred(image: DrawnImage, radius_px: float) -> DrawnImage:
    return np.asarray(Image.fromarray(image).filter(ImageFilter.GaussianBlur(radius_px)))


@pytest.mark.parametrize(
    ("shape", "first", "every"),
    [
        *((shape, index, len(SHAPES)) for index, shape in enumerate(SHAPES)),
        *(pytest.param(shape, 0, 1, marks=pytest.mark.full) for shape in SHAPES),
    ],
)
def test_recognises_every_colour_pair(shape: str, first: int, every: int) -> None:
    """Daily each pair with one of the shapes, in the full suite with all of them."""
    for index, (colour, ground) in enumerate(PAIRS[first::every]):
        scene = Scene(shape, colour, ground)
        seen = look_at(drawn(scene, seed=index))
        assert (seen.shape, seen.colour, seen.ground) == (shape, colour, ground)


@pytest.mark.parametrize("ground", COLOURS)
def test_recognises_the_zog(ground: str) -> None:
    scene = Scene("ring", "pink", ground)
    for seed in range(4):
        assert evaluate(drawn(scene, seed), scene) == Verdict(True, True, True)


@pytest.mark.parametrize("shape", KNOWN_SHAPES)
def test_recognises_soft_and_noisy_images(shape: str) -> None:
    generator = np.random.default_rng(1)
    for seed, (colour, ground) in enumerate(PAIRS[::5]):
        scene = Scene(shape, colour, ground)
        soft = blurred(drawn(scene, seed), 1.5).astype(float)
        rough = np.clip(soft + generator.normal(0, 12, soft.shape), 0, 255).astype(np.uint8)
        assert evaluate(rough, scene) == Verdict(True, True, True), (scene, look_at(rough))


def test_turns_down_each_wrong_answer_alone() -> None:
    image = drawn(Scene("star", "red", "white"))
    assert evaluate(image, Scene("star", "red", "white")) == Verdict(True, True, True)
    for shape in set(KNOWN_SHAPES) - {"star"}:
        assert evaluate(image, Scene(shape, "red", "white")) == Verdict(True, True, False)
    for colour in (*COLOURS, "pink"):
        if colour != "red":
            assert evaluate(image, Scene("star", colour, "white")) == Verdict(False, True, True)
        if colour != "white":
            assert evaluate(image, Scene("star", "red", colour)) == Verdict(True, False, True)


def test_every_shape_is_distinguished_from_every_other() -> None:
    for asked, shown in product(KNOWN_SHAPES, KNOWN_SHAPES):
        image = drawn(Scene(shown, "yellow", "blue"))
        assert evaluate(image, Scene(asked, "yellow", "blue")).shape_right == (asked == shown)


def test_swapped_colours_are_wrong() -> None:
    verdict = evaluate(drawn(Scene("circle", "red", "blue")), Scene("circle", "blue", "red"))
    assert not verdict.colour_right
    assert not verdict.ground_right
    assert not verdict.colours_right


def test_what_the_caption_leaves_open_counts_as_right() -> None:
    image = drawn(Scene("heart", "green", "black"))
    assert evaluate(image, Scene("heart", None, None)) == Verdict(True, True, True)
    assert evaluate(image, Scene("heart", None, "white")).colours_right is False


def test_an_empty_ground_shows_no_shape() -> None:
    empty = np.full((64, 64, 3), COLOURS["blue"], dtype=np.uint8)
    seen = look_at(empty)
    assert (seen.shape, seen.colour, seen.ground) == (None, None, "blue")


def test_noise_shows_nothing() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        noise = generator.integers(0, 256, (64, 64, 3), dtype=np.uint8)
        seen = look_at(noise)
        assert seen.shape is None
        assert seen.ground is None


@pytest.mark.parametrize("level", [95, 125, 155])
def test_grey_has_no_name(level: int) -> None:
    image = np.full((64, 64, 3), level, dtype=np.uint8)
    image[coverage("square", centre_px=(32, 32), radius_px=18) > 0.5] = COLOURS["white"]
    seen = look_at(image)
    assert (seen.ground, seen.colour, seen.shape) == (None, "white", "square")


def test_a_two_coloured_ground_has_no_name() -> None:
    image = drawn(Scene("circle", "black", "red"))
    image[:, :32][(image[:, :32, 0] > 150)] = COLOURS["white"]
    assert look_at(image).ground is None


def test_a_two_coloured_figure_has_no_name() -> None:
    image = drawn(Scene("square", "black", "red"))
    figure = look_at(image)
    assert figure.colour == "black"
    rows, columns = np.nonzero(image[..., 0] < 100)
    upper = rows < np.median(rows)
    image[rows[upper], columns[upper]] = COLOURS["blue"]
    assert look_at(image).colour is None


def test_two_figures_are_no_shape() -> None:
    image = np.full((64, 64, 3), COLOURS["yellow"], dtype=np.uint8)
    for centre_px in ((17.0, 17.0), (47.0, 47.0)):
        image[coverage("circle", centre_px=centre_px, radius_px=11) > 0.5] = COLOURS["black"]
    assert look_at(image).shape is None


@pytest.mark.parametrize("turn_rad", [np.pi / 4, np.pi])
def test_turned_figures_are_other_shapes(turn_rad: float) -> None:
    for shape in ("triangle", "heart", "cross", "square"):
        if shape in ("cross", "square") and turn_rad == np.pi:
            continue
        image = np.full((64, 64, 3), COLOURS["white"], dtype=np.uint8)
        mask = coverage(shape, centre_px=(32, 32), radius_px=20, turn_rad=turn_rad) > 0.5
        image[mask] = COLOURS["purple"]
        assert look_at(image).shape != shape


def test_a_half_hidden_figure_is_no_shape_of_its_kind() -> None:
    for shape in SHAPES:
        image = np.full((64, 64, 3), COLOURS["white"], dtype=np.uint8)
        image[coverage(shape, centre_px=(32, 32), radius_px=20) > 0.5] = COLOURS["red"]
        image[:, 32:] = COLOURS["white"]
        assert look_at(image).shape != shape


def test_random_answers_are_mostly_wrong() -> None:
    """Chance level: 1 of 6 shapes, 1 of 56 colour pairs. A evaluator that passes more would be lenient."""
    generator = np.random.default_rng(4)
    verdicts = [evaluate(draw_scene(random_scene(generator), generator), random_scene(generator)) for _ in range(60)]
    assert sum(verdict.shape_right for verdict in verdicts) < 18
    assert sum(verdict.colours_right for verdict in verdicts) < 5


def test_varied_images_rarely_pass_for_a_clean_shape() -> None:
    generator = np.random.default_rng(9)
    seen = [look_at(draw_varied_image(generator)) for _ in range(40)]
    assert sum(one.shape is not None and one.colour is not None and one.ground is not None for one in seen) < 10


def test_refuses_other_sizes_and_dtypes() -> None:
    with pytest.raises(ValueError, match="64 x 64 x 3"):
        look_at(np.zeros((32, 32, 3), dtype=np.uint8))
    with pytest.raises(ValueError, match="float"):
        look_at(np.zeros((64, 64, 3), dtype=np.float32))  # type: ignore[arg-type]
