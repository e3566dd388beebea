"""Images of every mode as sRGB: colour profiles, bit depths, and the colour behind transparent places."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from modules.data.decode import colour_of, flatten
from tests.builders.icc import WIDE_GAMUT

RNG = np.random.default_rng(3)
NOISE = Image.fromarray(RNG.integers(0, 256, (6, 9, 3), dtype=np.uint8))
SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def with_profile(image: Image.Image, profile: object) -> Image.Image:
    copy = image.copy()
    copy.info["icc_profile"] = profile
    return copy


def pixels(image: Image.Image) -> np.ndarray:
    assert image.mode == "RGB"
    return np.asarray(image).astype(int)


# -- colour profiles


def test_an_image_of_a_wide_gamut_is_converted() -> None:
    """Shown as sRGB, its colours are too pale."""
    plain = Image.new("RGB", (2, 2), (100, 180, 100))
    red, green, blue = pixels(flatten(with_profile(plain, WIDE_GAMUT)))[0, 0]
    assert green > 180
    assert red < 90
    assert blue < 100


def test_a_profile_that_is_already_srgb_changes_no_bit() -> None:
    assert np.array_equal(pixels(flatten(with_profile(NOISE, SRGB))), pixels(NOISE))


@pytest.mark.parametrize("profile", [b"", b"no profile", WIDE_GAMUT[:200], "text", None])
def test_a_damaged_profile_is_none(profile: object) -> None:
    assert np.array_equal(pixels(flatten(with_profile(NOISE, profile))), pixels(NOISE))


@pytest.mark.parametrize("mode", ["L", "LA", "CMYK", "1"])
def test_a_profile_of_another_colour_space_is_none(mode: str) -> None:
    image = Image.new(mode, (3, 3))
    assert np.array_equal(pixels(flatten(with_profile(image, WIDE_GAMUT))), pixels(flatten(image)))


def test_a_palette_and_a_transparent_image_are_converted_too() -> None:
    plain = Image.new("RGB", (2, 2), (100, 180, 100))
    expected = pixels(flatten(with_profile(plain, WIDE_GAMUT)))
    palette = with_profile(plain.convert("P", palette=Image.Palette.ADAPTIVE), WIDE_GAMUT)
    assert np.array_equal(pixels(flatten(palette)), expected)
    opaque = with_profile(plain.convert("RGBA"), WIDE_GAMUT)
    assert np.array_equal(pixels(flatten(opaque)), expected)
    clear = with_profile(Image.new("RGBA", (2, 2), (100, 180, 100, 0)), WIDE_GAMUT)
    assert (pixels(flatten(clear, (1, 2, 3))) == (1, 2, 3)).all()


def test_profiles_are_applied_alike_on_every_thread() -> None:
    image = with_profile(NOISE.resize((200, 200)), WIDE_GAMUT)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: pixels(flatten(image)), range(8)))
    assert all(np.array_equal(r, results[0]) for r in results)


def test_lab() -> None:
    """Pillow itself converts no LAB."""
    assert np.abs(pixels(flatten(Image.new("LAB", (2, 2), (255, 128, 128)))) - 255).max() <= 2


# -- bit depths


@pytest.mark.parametrize("top", [100_000, 2**31 - 1])
def test_thirty_two_bits_are_scaled_and_not_clipped(top: int) -> None:
    """Everything above 65535 used to come out white."""
    values = np.linspace(0, top, 60).astype(np.int32).reshape(6, 10)
    grey = pixels(flatten(Image.fromarray(values)))[..., 0]
    assert np.abs(grey - values / top * 255).max() <= 1


def test_sixteen_bits_of_colour(tmp_path: Path) -> None:
    """As PNG and PPM files have them; Pillow reads them as 8 bits."""
    values = np.linspace(0, 65535, 30).astype(">u2").reshape(2, 5, 3)
    file = tmp_path / "a.ppm"
    file.write_bytes(b"P6 5 2 65535\n" + values.tobytes())
    with Image.open(file) as image:
        assert np.abs(pixels(flatten(image)) - values.astype(float) / 257).max() <= 1


# -- transparent places


@pytest.mark.parametrize(
    ("text", "colour"),
    [
        ("white", (255, 255, 255)),
        (" #102030 ", (16, 32, 48)),
        ("#fff", (255, 255, 255)),
        ("#10203040", (16, 32, 48)),
        ("rgb(1,2,3)", (1, 2, 3)),
        ("", None),
        ("#12", None),
        ("no colour", None),
        ("x" * 1000, None),
    ],
)
def test_names_and_values_of_colours(text: str, colour: tuple[int, int, int] | None) -> None:
    assert colour_of(text) == colour


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_the_colour_behind_transparent_places(mode: str) -> None:
    image = Image.new(mode, (2, 1), 0)
    image.putpixel((1, 0), (7, 7, 7, 255) if mode == "RGBA" else (7, 255))
    assert pixels(flatten(image, (10, 20, 30))).tolist() == [[[10, 20, 30], [7, 7, 7]]]
    assert pixels(flatten(image)).tolist() == [[[255, 255, 255], [7, 7, 7]]]
