"""The sizes images are trained at, and how an image is fitted into one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.data.buckets import (
    AspectRatios,
    BucketRules,
    Size,
    bucket_sizes,
    fixed_bucket_sizes,
    resize_crop_for,
)

steps = st.sampled_from([8, 16, 32, 64])
resolutions = st.integers(64, 2048)
aspects = st.floats(1, 8)


@given(resolution=resolutions, step=steps, max_aspect_ratio=aspects)
def test_sizes_keep_their_promises(resolution: int, step: int, max_aspect_ratio: float) -> None:
    sizes = bucket_sizes(resolution, step_px=step, max_aspect_ratio=max_aspect_ratio, is_bucketing=True)
    side = resolution // step * step
    assert Size(side, side) in sizes
    assert list(sizes) == sorted(set(sizes))
    for size in sizes:
        assert size.width_px % step == 0
        assert size.height_px % step == 0
        assert 0 < size.width_px * size.height_px <= resolution * resolution
        assert 1 / max_aspect_ratio <= size.aspect <= max_aspect_ratio
        assert Size(size.height_px, size.width_px) in sizes


@given(resolution=resolutions, step=steps, max_aspect_ratio=aspects)
def test_a_size_wastes_less_than_a_step(resolution: int, step: int, max_aspect_ratio: float) -> None:
    """Of each long side the largest short one is taken."""
    for size in bucket_sizes(resolution, step_px=step, max_aspect_ratio=max_aspect_ratio, is_bucketing=True):
        longer, shorter = max(size.width_px, size.height_px), min(size.width_px, size.height_px)
        if longer != shorter:
            assert longer * (shorter + step) > resolution * resolution


@given(resolution=st.integers(1, 2048), step=steps, max_aspect_ratio=aspects)
def test_without_bucketing_there_is_the_square_alone(resolution: int, step: int, max_aspect_ratio: float) -> None:
    side = max(step, resolution // step * step)
    assert bucket_sizes(resolution, step_px=step, max_aspect_ratio=max_aspect_ratio, is_bucketing=False) == (
        Size(side, side),
    )


def test_a_resolution_below_the_step_is_one_step() -> None:
    assert bucket_sizes(32, step_px=64, max_aspect_ratio=2.0, is_bucketing=True) == (Size(64, 64),)


def test_the_sizes_of_512() -> None:
    sizes = bucket_sizes(512, step_px=64, max_aspect_ratio=2.0, is_bucketing=True)
    assert [str(s) for s in sizes] == ["384x640", "448x576", "512x512", "576x448", "640x384"]


@given(width=st.integers(1, 10_000), height=st.integers(1, 10_000), resolution=resolutions, step=steps)
def test_a_resize_crop_covers_its_bucket(width: int, height: int, resolution: int, step: int) -> None:
    sizes = bucket_sizes(resolution, step_px=step, max_aspect_ratio=2.0, is_bucketing=True)
    placed = resize_crop_for(width, height, sizes)
    bucket, scaled = placed.bucket, placed.scaled
    assert bucket in sizes
    assert scaled.width_px >= bucket.width_px
    assert scaled.height_px >= bucket.height_px
    assert scaled.width_px == bucket.width_px or scaled.height_px == bucket.height_px
    assert 0 <= placed.crop_left_px <= scaled.width_px - bucket.width_px
    assert 0 <= placed.crop_top_px <= scaled.height_px - bucket.height_px
    assert abs(scaled.width_px - bucket.width_px - 2 * placed.crop_left_px) <= 1
    assert abs(scaled.height_px - bucket.height_px - 2 * placed.crop_top_px) <= 1
    assert placed.is_exact == (scaled == bucket)
    # The shape is kept but for the rounding of the side that is cut.
    scale = max(bucket.width_px / width, bucket.height_px / height)
    assert abs(scaled.width_px - width * scale) <= 1
    assert abs(scaled.height_px - height * scale) <= 1


@given(width=st.integers(1, 5000), height=st.integers(1, 5000), resolution=resolutions)
def test_the_nearest_shape_is_taken(width: int, height: int, resolution: int) -> None:
    sizes = bucket_sizes(resolution, step_px=64, max_aspect_ratio=2.0, is_bucketing=True)
    chosen = resize_crop_for(width, height, sizes).bucket

    def distance(size: Size) -> float:
        return abs(math.log(size.aspect * height / width))

    assert distance(chosen) <= min(distance(s) for s in sizes) + 1e-9


@given(resolution=resolutions, step=steps)
def test_an_image_of_a_bucket_s_size_is_placed_in_it_exactly(resolution: int, step: int) -> None:
    sizes = bucket_sizes(resolution, step_px=step, max_aspect_ratio=2.0, is_bucketing=True)
    for size in sizes:
        placed = resize_crop_for(size.width_px, size.height_px, sizes)
        assert placed.is_exact
        assert placed.bucket == size


@given(width=st.integers(1, 3000), height=st.integers(1, 3000))
def test_an_image_on_its_side_is_placed_on_its_side(width: int, height: int) -> None:
    sizes = bucket_sizes(512, step_px=64, max_aspect_ratio=2.0, is_bucketing=True)
    one, other = resize_crop_for(width, height, sizes), resize_crop_for(height, width, sizes)
    if width != height:
        assert (one.scaled.width_px, one.scaled.height_px) == (other.scaled.height_px, other.scaled.width_px)


@pytest.mark.parametrize(
    ("width", "height", "bucket", "scaled", "crop"),
    [
        (512, 512, "512x512", "512x512", (0, 0)),
        (1024, 1024, "512x512", "512x512", (0, 0)),
        (1600, 1200, "576x448", "597x448", (10, 0)),
        (1000, 4000, "384x640", "384x1536", (0, 448)),
        (100, 90, "512x512", "569x512", (28, 0)),
    ],
)
def test_resize_crops(width: int, height: int, bucket: str, scaled: str, crop: tuple[int, int]) -> None:
    placed = resize_crop_for(width, height, bucket_sizes(512, step_px=64, max_aspect_ratio=2.0, is_bucketing=True))
    assert (str(placed.bucket), str(placed.scaled)) == (bucket, scaled)
    assert (placed.crop_left_px, placed.crop_top_px) == crop


@pytest.mark.parametrize(
    ("resolution", "step", "expected"),
    [
        (512, 64, {"512x512", "576x448", "640x448", "704x384", "832x320", "896x320", "960x256", "1024x256"}),
        (512, 8, {"512x512", "576x456", "624x416", "680x384", "728x360", "808x320", "888x296", "960x272", "1024x256"}),
        (1024, 64, {"1024x1024", "1152x896", "1280x832", "1344x768", "1472x704", "1600x640", "1792x576", "1920x576",
                    "2048x512"}),
    ],
)  # fmt: skip
def test_fixed_aspect_ratios(resolution: int, step: int, expected: set[str]) -> None:
    """OneTrainer's: 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, each side rounded to the step."""
    sizes = fixed_bucket_sizes(resolution, step_px=step, max_aspect_ratio=4.0)
    assert {str(s) for s in sizes if s.width_px >= s.height_px} == expected
    assert {(s.height_px, s.width_px) for s in sizes} == {(s.width_px, s.height_px) for s in sizes}
    if step == 8:
        assert len(sizes) == 17


@given(width=st.integers(16, 700), height=st.integers(16, 700), aspects=st.sampled_from(["free", "fixed"]))
def test_never_upscaled(width: int, height: int, aspects: AspectRatios) -> None:
    rules = BucketRules((512,), 64, 4.0, is_bucketing=True, aspect_ratios=aspects, never_upscale=True)
    size = Size(width, height)
    try:
        (fit,) = rules.resize_crops(size, rules.sizes())
    except ValueError as error:
        assert "too small" in str(error)  # noqa: PT017 - either is right
        return
    assert fit.scaled.width_px <= width
    assert fit.scaled.height_px <= height
    assert fit.bucket.width_px % 64 == fit.bucket.height_px % 64 == 0
    plain = replace(rules, never_upscale=False)
    (large,) = plain.resize_crops(size, plain.sizes())
    if width >= large.bucket.width_px and height >= large.bucket.height_px:
        assert fit == large
