"""The recipe of an image: drawn from settings and a seed, applied to image, mask and conditioning image alike."""

from __future__ import annotations

import colorsys
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from modules.data.buckets import (
    Angles,
    BucketRules,
    ResizeCrop,
    Size,
    bucket_sizes,
    direction,
    resize_crop_for,
    rotated_extent,
)
from modules.data.image_settings import AUGMENTATIONS, STRENGTH_OF, ImageChanges, Way, is_random
from modules.data.transforms.apply import load_conditioning_image, load_mask, load_pixels, resize_and_crop
from modules.data.transforms.geometry import Box, Geometry
from modules.data.transforms.masks import circle_of, white_box
from modules.data.transforms.recipe import Colour, Recipe, angles_of, draw_recipe, plain_recipe, recolour
from tests.builders.images import draw_image

SQUARE = resize_crop_for(96, 64, (Size(64, 64),))
ALL_RANDOM = ImageChanges(
    crop_jitter=True, flip="random", rotate="random", rotate_max_degrees=30, brightness="random", brightness_max=0.3,
    contrast="random", contrast_max=0.3, saturation="random", saturation_max=0.3, hue="random", hue_max=0.3,
    circular_mask_shrink=True,
)  # fmt: skip


def drawn(settings: ImageChanges, seed: int = 1, *, mask_box: Box | None = None, fit: ResizeCrop = SQUARE) -> Recipe:
    return draw_recipe(settings, size=Size(96, 64), resize_crop=fit, mask_box=mask_box, seed=seed)


# -- drawing


def test_without_augmentation_an_image_is_resized_and_cropped() -> None:
    assert drawn(ImageChanges()) == plain_recipe(SQUARE)
    assert not is_random(ImageChanges(flip="always", rotate="always", rotate_max_degrees=3))


def test_equal_arguments_draw_the_same_and_another_seed_does_not() -> None:
    assert drawn(ALL_RANDOM, 5) == drawn(ALL_RANDOM, 5)
    assert len({drawn(ALL_RANDOM, seed) for seed in range(20)}) == 20
    assert is_random(ALL_RANDOM)


def test_every_augmentation_is_listed_with_the_value_that_switches_it_off() -> None:
    assert not is_random(ImageChanges(**AUGMENTATIONS))
    ons = {name: True if off is False else "random" for name, off in AUGMENTATIONS.items()}
    assert list(ons.values()).count(True) == 3
    assert list(ons.values()).count("random") == 6
    assert all(is_random(ImageChanges(**{name: on})) for name, on in ons.items())
    assert STRENGTH_OF.keys() == {name for name, on in ons.items() if on == "random"} - {"flip"}


def test_one_augmentation_leaves_the_draws_of_the_others() -> None:
    for seed in range(10):
        without = ALL_RANDOM.model_copy(update={"brightness": "off", "flip": "off"})
        one, other = drawn(ALL_RANDOM, seed), drawn(without, seed)
        assert one.colour.hue_degrees == other.colour.hue_degrees
        assert abs(one.geometry.degrees) == abs(other.geometry.degrees)
        assert one.mask_circle == other.mask_circle


def test_fixed_uses_exactly_the_strength() -> None:
    recipe = drawn(
        ImageChanges(
            flip="always", rotate="always", rotate_max_degrees=10, brightness="always", brightness_max=0.25,
            contrast="always", contrast_max=0.5, saturation="always", saturation_max=1, hue="always", hue_max=0.5,
        )
    )  # fmt: skip
    assert recipe.colour == Colour(1.25, 1.5, 2.0, 90.0)
    assert recipe.geometry.is_flipped
    assert recipe.geometry.degrees == -10  # mirrored afterwards: counterclockwise as seen


def test_random_draws_fill_their_range_and_stay_in_it() -> None:
    recipes = [drawn(ALL_RANDOM, seed) for seed in range(300)]
    for values, low, high in (
        ([r.colour.brightness for r in recipes], 0.7, 1.3),
        ([r.colour.contrast for r in recipes], 0.7, 1.3),
        ([r.colour.saturation for r in recipes], 0.7, 1.3),
        ([r.colour.hue_degrees for r in recipes], -54, 54),
        ([r.geometry.degrees for r in recipes], -30, 30),
        ([r.mask_circle or 0 for r in recipes], 0.2, 1.0),
    ):
        margin = (high - low) * 0.1
        assert low <= min(values) < low + margin
        assert high - margin < max(values) <= high
    assert 100 < sum(r.geometry.is_flipped for r in recipes) < 200


def test_crop_jitter_reaches_both_edges() -> None:
    lefts = {drawn(ImageChanges(crop_jitter=True), seed).geometry.resize_crop.crop_left_px for seed in range(400)}
    assert lefts == set(range(33))


# -- geometry


@given(
    width=st.integers(20, 300),
    height=st.integers(20, 300),
    degrees=st.floats(0, 360),
    jitter=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_rotated_crop_never_shows_what_is_outside(
    width: int, height: int, degrees: float, jitter: bool, seed: int
) -> None:
    fit = resize_crop_for(width, height, bucket_sizes(64, step_px=16, max_aspect_ratio=2.0, is_bucketing=True))
    settings = ImageChanges(crop_jitter=jitter, rotate="always", rotate_max_degrees=degrees)
    recipe = draw_recipe(settings, size=Size(width, height), resize_crop=fit, mask_box=None, seed=seed)
    image = resize_and_crop(Image.new("RGB", (width, height), (200, 210, 220)), recipe.geometry)
    assert image.size == (fit.bucket.width_px, fit.bucket.height_px)
    assert image.getextrema() == ((200, 200), (210, 210), (220, 220))


@given(
    sides=st.tuples(st.integers(20, 400), st.integers(20, 400)),
    corners=st.tuples(*[st.floats(0, 1)] * 4),
    way=st.sampled_from(["off", "random", "always"]),
    degrees=st.floats(0, 360) | st.sampled_from([0.0, 45.0, 90.0, 180.0]),
    crops_to_mask=st.booleans(),
    step_px=st.sampled_from([8, 16, 64]),
    seed=st.integers(0, 99),
)
def test_never_upscaled_at_any_angle_and_crop(
    sides: tuple[int, int],
    corners: tuple[float, float, float, float],
    way: Way,
    degrees: float,
    crops_to_mask: bool,
    step_px: int,
    seed: int,
) -> None:
    size = Size(*sides)
    lefts, tops = sorted(corners[:2]), sorted(corners[2:])
    left, top = int(lefts[0] * (size.width_px - 1)), int(tops[0] * (size.height_px - 1))
    right = left + max(1, int(lefts[1] * size.width_px) - left)
    bottom = top + max(1, int(tops[1] * size.height_px) - top)
    box = Box(left, top, right, bottom) if crops_to_mask else None
    settings = ImageChanges(
        rotate=way, rotate_max_degrees=degrees, flip="random", mask_rotate_crop=crops_to_mask, crop_jitter=True
    )
    rules = BucketRules((256,), step_px, 2.0, is_bucketing=True, never_upscale=True)
    try:
        (fit,) = rules.resize_crops(
            size, rules.sizes(), part=box.size if box else None, angles=angles_of(settings, has_mask_box=bool(box))
        )
    except ValueError as error:
        assert "too small for a bucket without upscaling" in str(error)  # noqa: PT017 - either is right
        return
    for draw in range(5):
        recipe = draw_recipe(settings, size=size, resize_crop=fit, mask_box=box, seed=seed + 100 * draw)
        assert recipe.geometry.scale(size) <= 1


@given(
    sides=st.tuples(st.integers(1, 99), st.integers(1, 99)),
    ends=st.tuples(st.floats(0, 400), st.floats(0, 400)).map(sorted),
    place=st.floats(0, 1),
)
def test_the_room_for_angles_is_that_of_the_worst(sides: tuple[int, int], ends: list[float], place: float) -> None:
    lowest, highest = ends
    width, height = Angles(lowest, highest).extent(sides)
    for sign in (1, -1):
        found = rotated_extent(sides, sign * (lowest + place * (highest - lowest)))
        assert found[0] <= width + 1e-9
        assert found[1] <= height + 1e-9
    tried = [rotated_extent(sides, lowest + n / 500 * (highest - lowest)) for n in range(501)]
    assert (width, height) == pytest.approx((max(w for w, _ in tried), max(h for _, h in tried)), rel=1e-3)


@pytest.mark.parametrize(("degrees", "turns"), [(90, 1), (180, 2), (270, 3)])
def test_quarter_turns_copy_the_pixels(degrees: int, turns: int) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    square = resize_crop_for(64, 64, (Size(64, 64),))
    settings = ImageChanges(rotate="always", rotate_max_degrees=degrees)
    recipe = draw_recipe(settings, size=Size(64, 64), resize_crop=square, mask_box=None, seed=0)
    assert np.array_equal(
        np.asarray(resize_and_crop(Image.fromarray(pixels), recipe.geometry)), np.rot90(pixels, turns)
    )


@pytest.mark.parametrize("flip", ["off", "always"])
@pytest.mark.parametrize("degrees", [0.0, 17.0, -40.0, 90.0])
@pytest.mark.parametrize("cut", [None, Box(20, 10, 180, 130)])
def test_marked_corners_land_where_the_geometry_puts_them_in_all_three(
    tmp_path: Path, flip: str, degrees: float, cut: Box | None
) -> None:
    """Dots on image, mask and conditioning image: all are found at the computed place, to the pixel."""
    width, height = 200, 150
    marks = [(70, 55), (125, 55), (70, 95), (125, 95)]
    dots = Image.new("RGB", (width, height))
    for left, top in marks:
        ImageDraw.Draw(dots).rectangle((left - 2, top - 2, left + 2, top + 2), fill=(255, 255, 255))
    for name in ("a.png", "a-masklabel.png", "a-condlabel.png"):
        dots.save(tmp_path / name)
    fit = ResizeCrop(Size(64, 64), Size(120, 90) if cut is None else Size(96, 72), 25, 9)
    geometry = Geometry(fit, degrees, flip == "always", cut)
    recipe, size = Recipe(geometry), Size(width, height)
    image = load_pixels(tmp_path / "a.png", recipe)[..., 0]
    mask = load_mask(tmp_path / "a-masklabel.png", recipe, image_size=size, is_alpha=False)
    conditioning = load_conditioning_image(tmp_path / "a-condlabel.png", recipe, image_size=size)[..., 0]
    assert np.array_equal(image, conditioning)
    num_seen = 0
    places = [expected_place(mark, size, geometry) for mark in marks]
    for x, y in [p for p in places if min(p) >= 6 and max(p) <= 57]:
        num_seen += 1
        assert center_near(image, x, y) == pytest.approx((x, y), abs=0.3)
        assert center_near(mask, x, y) == pytest.approx(center_near(image, x, y), abs=0.2)
    assert num_seen >= 1


def expected_place(mark: tuple[int, int], size: Size, geometry: Geometry) -> tuple[float, float]:
    """Where the middle of a pixel of the image ends up, by the definition in `Geometry`."""
    fit, cut = geometry.resize_crop, geometry.cut or Box(0, 0, size.width_px, size.height_px)
    x = (mark[0] + 0.5 - cut.left_px) * fit.scaled.width_px / cut.size.width_px
    y = (mark[1] + 0.5 - cut.top_px) * fit.scaled.height_px / cut.size.height_px
    x, y = x - fit.crop_left_px - fit.bucket.width_px / 2, y - fit.crop_top_px - fit.bucket.height_px / 2
    cosine, sine = direction(geometry.degrees)
    x, y = cosine * x + sine * y, cosine * y - sine * x
    x = -x if geometry.is_flipped else x
    return x + fit.bucket.width_px / 2 - 0.5, y + fit.bucket.height_px / 2 - 0.5


def center_near(values: np.ndarray, x: float, y: float) -> tuple[float, float]:
    """The center of mass of the values around a place."""
    left, top = round(x) - 4, round(y) - 4
    part = values[top : top + 9, left : left + 9].astype(float)
    rows, columns = np.mgrid[top : top + 9, left : left + 9]
    return float((part * columns).sum() / part.sum()), float((part * rows).sum() / part.sum())


def test_images_of_the_bucket_s_size_pass_bit_exact_and_mirrored_ones_are_copied() -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (64, 48, 3), dtype=np.uint8)
    exact = resize_crop_for(48, 64, (Size(48, 64),))
    for is_flipped in (False, True):
        seen = np.asarray(resize_and_crop(Image.fromarray(pixels), Geometry(exact, is_flipped=is_flipped)))
        assert np.array_equal(seen, pixels[:, ::-1] if is_flipped else pixels)


def test_down_is_lanczos_and_up_is_bicubic() -> None:
    image = draw_image(100, 100, 2)
    for side, filter_ in ((64, Image.Resampling.LANCZOS), (160, Image.Resampling.BICUBIC)):
        fit = resize_crop_for(100, 100, (Size(side, side),))
        expected = image.resize((side, side), filter_, reducing_gap=3.0)
        assert np.array_equal(np.asarray(resize_and_crop(image, Geometry(fit))), np.asarray(expected))


def test_the_crop_box_and_corner_are_those_of_the_trained_part() -> None:
    size = Size(200, 100)
    geometry = Geometry(ResizeCrop(Size(64, 64), Size(128, 64), 10, 0))
    assert geometry.crop_box(size) == (15.625, 0, 115.625, 100)
    assert geometry.crop_corner(size) == (10, 0)
    assert geometry.scale(size) == 0.64
    mirrored = Geometry(geometry.resize_crop, is_flipped=True)
    assert mirrored.crop_box(size) == geometry.crop_box(size)  # in the file
    assert mirrored.crop_corner(size) == (128 - 64 - 10, 0)  # in the mirrored image
    cut = Geometry(ResizeCrop(Size(64, 64), Size(64, 64), 0, 0), cut=Box(50, 20, 82, 52))
    assert cut.crop_box(size) == (50, 20, 82, 52)
    assert cut.crop_corner(size) == (100, 40)


# -- masks


@given(
    left=st.integers(0, 150), top=st.integers(0, 80), width=st.integers(8, 50), height=st.integers(8, 40),
    seed=st.integers(0, 50),
)  # fmt: skip
def test_a_mask_crop_contains_the_middle_of_the_mask(left: int, top: int, width: int, height: int, seed: int) -> None:
    box, size = Box(left, top, left + width, top + height), Size(220, 130)
    fit = resize_crop_for(220, 130, (Size(64, 48),))
    settings = ImageChanges(mask_rotate_crop=True)
    recipe = draw_recipe(settings, size=size, resize_crop=fit, mask_box=box, seed=seed)
    mask = Image.new("L", (220, 130))
    ImageDraw.Draw(mask).rectangle((left, top, left + width - 1, top + height - 1), fill=255)
    seen = np.asarray(resize_and_crop(mask, recipe.geometry))
    assert seen.shape == (48, 64)
    assert seen.max() > 128  # wherever the mask is, the crop shows it
    assert recipe.geometry.cut is not None


def test_a_mask_in_the_middle_is_wholly_inside_its_crop() -> None:
    box = Box(80, 50, 130, 80)
    for seed in range(30):
        fit = resize_crop_for(220, 130, (Size(64, 48),))
        settings = ImageChanges(mask_rotate_crop=True)
        recipe = draw_recipe(settings, size=Size(220, 130), resize_crop=fit, mask_box=box, seed=seed)
        for corner in itertools.product((80, 129), (50, 79)):
            x, y = expected_place(corner, Size(220, 130), recipe.geometry)
            assert 0 <= x <= 63
            assert 0 <= y <= 47


def test_an_image_without_mask_is_not_cropped_to_it() -> None:
    assert drawn(ImageChanges(mask_rotate_crop=True)) == plain_recipe(SQUARE)


def test_the_circle_shrinks_the_mask_around_its_middle() -> None:
    mask = np.zeros((40, 60), np.uint8)
    mask[10:31, 20:41] = 255
    assert np.array_equal(circle_of(mask, 1.0), mask)
    half = circle_of(mask, 0.5)
    rows, columns = np.nonzero(half)
    assert (rows.mean(), columns.mean()) == (20, 30)
    radius = 0.5 * np.hypot(10, 10)
    assert np.hypot(rows - 20, columns - 30).max() <= radius
    assert half[20, 30 + int(radius)] == 255
    assert not circle_of(np.zeros((4, 4), np.uint8), 0.5).any()


def test_alpha_is_a_mask_and_masks_of_another_size_follow(tmp_path: Path) -> None:
    alpha = Image.new("L", (96, 64), 0)
    ImageDraw.Draw(alpha).rectangle((0, 0, 47, 63), fill=255)
    image = draw_image(96, 64, 1)
    image.putalpha(alpha)
    image.save(tmp_path / "a.png")
    alpha.resize((48, 32)).save(tmp_path / "m.png")
    size, recipe = Size(96, 64), plain_recipe(SQUARE)
    from_alpha = load_mask(tmp_path / "a.png", recipe, image_size=size, is_alpha=True)
    assert from_alpha.shape == (64, 64)
    assert (from_alpha[:, :32] == 255).all()
    assert (from_alpha[:, 32:] == 0).all()
    smaller = load_mask(tmp_path / "m.png", recipe, image_size=size, is_alpha=False)
    assert (smaller[:, :29] == 255).all()
    assert (smaller[:, 35:] == 0).all()
    assert white_box(alpha) == Box(0, 0, 48, 64)
    assert white_box(Image.new("L", (5, 5))) is None


# -- colour


def test_colours_are_changed_as_defined() -> None:
    pixels = np.random.default_rng(5).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    values = pixels / 255.0
    gray = values @ [0.299, 0.587, 0.114]
    assert recolour(pixels, Colour()) is pixels
    for colour, expected in (
        (Colour(brightness=1.3), values * 1.3),
        (Colour(contrast=0.5), gray.mean() + 0.5 * (values - gray.mean())),
        (Colour(saturation=1.4), gray[..., None] + 1.4 * (values - gray[..., None])),
    ):
        assert np.abs(recolour(pixels, colour) - np.clip(expected, 0, 1) * 255).max() <= 0.51


def test_hue_is_moved_in_hsv() -> None:
    pixels = np.random.default_rng(5).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    pixels[0, 0] = (90, 90, 90)
    shifted = recolour(pixels, Colour(hue_degrees=72))
    for before, after in zip(pixels.reshape(-1, 3), shifted.reshape(-1, 3), strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*(before / 255))
        expected = np.array(colorsys.hsv_to_rgb((hue + 0.2) % 1, saturation, value)) * 255
        assert np.abs(after - expected).max() <= 0.51
    assert np.array_equal(recolour(pixels, Colour(hue_degrees=360)), pixels)


def test_the_rectangle_around_a_rotated_one() -> None:
    assert rotated_extent((30, 10), 0) == (30, 10)
    assert rotated_extent((30, 10), 270) == (10, 30)
    assert rotated_extent((10, 10), 45) == pytest.approx((14.142, 14.142), abs=1e-3)
