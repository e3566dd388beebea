"""An image as its bucket shows it: every kind of image, to the pixel."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from modules.data.buckets import ResizeCrop, Size, bucket_sizes, resize_crop_for
from modules.data.images import BrokenImageError
from modules.data.transforms import apply
from modules.data.transforms.recipe import plain_recipe
from tests.builders.images import draw_image

RNG = np.random.default_rng(7)
NOISE = RNG.integers(0, 256, (24, 40, 3), dtype=np.uint8)


def exact(width_px: int, height_px: int) -> ResizeCrop:
    size = Size(width_px, height_px)
    return ResizeCrop(size, size, 0, 0)


def load_pixels(path: Path, resize_crop: ResizeCrop) -> np.ndarray:
    return apply.load_pixels(path, plain_recipe(resize_crop))


def fitted(file: Path, image: Image.Image, resize_crop: ResizeCrop | None = None, **options: object) -> np.ndarray:
    image.save(file, **options)
    pixels = load_pixels(file, resize_crop or exact(*image.size))
    assert pixels.dtype == np.uint8
    return pixels


# -- an image of the bucket's size


@pytest.mark.parametrize("kind", ["png", "bmp", "tiff"])
def test_an_image_of_the_bucket_s_size_passes_untouched(tmp_path: Path, kind: str) -> None:
    assert np.array_equal(fitted(tmp_path / f"a.{kind}", Image.fromarray(NOISE)), NOISE)


def test_a_jpeg_is_what_its_decoder_gives(tmp_path: Path) -> None:
    pixels = fitted(tmp_path / "a.jpg", Image.fromarray(NOISE), quality=80)
    with Image.open(tmp_path / "a.jpg") as image:
        assert np.array_equal(pixels, np.asarray(image))


@given(width=st.integers(1, 30), height=st.integers(1, 30))
def test_whatever_size_a_bucket_has(tmp_path_factory: pytest.TempPathFactory, width: int, height: int) -> None:
    file = tmp_path_factory.getbasetemp() / "any.png"
    pixels = np.random.default_rng(width * 31 + height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)
    sizes = (Size(width, height), Size(height + 1, width + 1))
    resize_crop = resize_crop_for(width, height, (sizes[0],))
    assert resize_crop.is_exact
    assert np.array_equal(load_pixels(file, resize_crop), pixels)


# -- scaled and cropped


def test_the_middle_is_cut_out(tmp_path: Path) -> None:
    resize_crop = ResizeCrop(Size(16, 24), Size(40, 24), 12, 0)
    assert np.array_equal(fitted(tmp_path / "wide.png", Image.fromarray(NOISE), resize_crop), NOISE[:, 12:28])
    resize_crop = ResizeCrop(Size(40, 8), Size(40, 24), 0, 8)
    assert np.array_equal(fitted(tmp_path / "high.png", Image.fromarray(NOISE), resize_crop), NOISE[8:16, :])


def test_scaling_is_pillow_s_lanczos_with_a_gap_of_three(tmp_path: Path) -> None:
    image = draw_image(640, 480, 0)
    resize_crop = resize_crop_for(640, 480, (Size(64, 48),))
    expected = np.asarray(image.resize((64, 48), Image.Resampling.LANCZOS, reducing_gap=3.0))
    assert np.array_equal(fitted(tmp_path / "a.png", image, resize_crop), expected)


@pytest.mark.parametrize(("width", "height"), [(8, 8), (20, 10), (3, 50), (1, 1)])
def test_a_small_image_is_scaled_up_to_cover_its_bucket(tmp_path: Path, width: int, height: int) -> None:
    resize_crop = resize_crop_for(width, height, (Size(64, 32), Size(32, 64), Size(48, 48)))
    pixels = fitted(tmp_path / "small.png", draw_image(width, height, 0), resize_crop)
    assert pixels.shape == (resize_crop.bucket.height_px, resize_crop.bucket.width_px, 3)


def test_one_colour_stays_one_colour(tmp_path: Path) -> None:
    """No edge of the scaled image shows."""
    resize_crop = resize_crop_for(37, 91, (Size(64, 64),))
    pixels = fitted(tmp_path / "flat.png", Image.new("RGB", (37, 91), (10, 200, 30)), resize_crop)
    assert np.array_equal(pixels, np.broadcast_to(np.array([10, 200, 30], np.uint8), (64, 64, 3)))


@given(width=st.integers(1, 200), height=st.integers(1, 200), step=st.sampled_from([8, 16]))
def test_any_image_fills_its_bucket(
    tmp_path_factory: pytest.TempPathFactory, width: int, height: int, step: int
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.bmp"
    Image.new("RGB", (width, height), (1, 2, 3)).save(file)
    sizes = bucket_sizes(64, step_px=step, max_aspect_ratio=2.0, is_bucketing=True)
    resize_crop = resize_crop_for(width, height, sizes)
    pixels = load_pixels(file, resize_crop)
    assert pixels.shape == (resize_crop.bucket.height_px, resize_crop.bucket.width_px, 3)
    assert (pixels == (1, 2, 3)).all()


# -- turned


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_the_image_before_it_is_fitted(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = {
        1: NOISE, 2: NOISE[:, ::-1], 3: NOISE[::-1, ::-1], 4: NOISE[::-1], 5: NOISE.transpose(1, 0, 2),
        6: NOISE[::-1].transpose(1, 0, 2), 7: NOISE[::-1, ::-1].transpose(1, 0, 2),
        8: NOISE[:, ::-1].transpose(1, 0, 2),
    }[orientation]  # fmt: skip
    resize_crop = exact(turned.shape[1], turned.shape[0])
    assert np.array_equal(fitted(tmp_path / "a.png", Image.fromarray(NOISE), resize_crop, exif=exif), turned)


# -- transparent


def test_transparent_places_are_white(tmp_path: Path) -> None:
    alpha = np.zeros((24, 40), np.uint8)
    alpha[:, 10:] = 128
    alpha[:, 20:] = 255
    pixels = fitted(tmp_path / "a.png", Image.fromarray(np.dstack([NOISE, alpha])))
    assert (pixels[:, :10] == 255).all()
    assert np.array_equal(pixels[:, 20:], NOISE[:, 20:])
    half = (NOISE[:, 10:20].astype(float) * 128 + 255.0 * 127) / 255
    assert np.abs(pixels[:, 10:20] - half).max() <= 1


def test_grey_with_alpha(tmp_path: Path) -> None:
    image = Image.merge("LA", (Image.new("L", (4, 4), 100), Image.new("L", (4, 4), 0)))
    image.putpixel((0, 0), (100, 255))
    pixels = fitted(tmp_path / "a.png", image)
    assert pixels[0, 0].tolist() == [100] * 3
    assert pixels[3, 3].tolist() == [255] * 3


def test_a_palette_with_one_transparent_colour(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 0)
    image.putpalette([200, 0, 0, 0, 0, 200])
    image.putpixel((1, 1), 1)
    for kind in ("png", "gif"):
        pixels = fitted(tmp_path / f"a.{kind}", image, transparency=0)
        assert pixels[0, 0].tolist() == [255] * 3
        assert pixels[1, 1].tolist() == [0, 0, 200]


def test_a_palette_with_half_transparent_colours(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 0)
    image.putpalette([200, 0, 0, 0, 0, 200])
    image.putpixel((1, 1), 1)
    pixels = fitted(tmp_path / "a.png", image, transparency=bytes([0, 255]))
    assert pixels[0, 0].tolist() == [255] * 3
    assert pixels[1, 1].tolist() == [0, 0, 200]


def test_a_palette_without_transparency(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([200, 0, 0, 0, 0, 200])
    assert (fitted(tmp_path / "a.png", image) == (0, 0, 200)).all()


@pytest.mark.parametrize(("mode", "colour"), [("RGB", (9, 8, 7)), ("L", 9)])
def test_one_colour_declared_transparent(tmp_path: Path, mode: str, colour: object) -> None:
    image = Image.new(mode, (4, 4), colour)  # type: ignore[arg-type]
    image.putpixel((1, 1), (50, 60, 70) if mode == "RGB" else 50)
    pixels = fitted(tmp_path / "a.png", image, transparency=colour)
    assert pixels[0, 0].tolist() == [255] * 3
    assert pixels[1, 1].tolist() == ([50, 60, 70] if mode == "RGB" else [50] * 3)


# -- other kinds


def test_grey(tmp_path: Path) -> None:
    grey = NOISE[..., 0]
    assert np.array_equal(fitted(tmp_path / "a.png", Image.fromarray(grey)), np.dstack([grey] * 3))


def test_black_and_white(tmp_path: Path) -> None:
    image = Image.new("1", (4, 4), 1)
    image.putpixel((1, 1), 0)
    pixels = fitted(tmp_path / "a.png", image)
    assert pixels[0, 0].tolist() == [255] * 3
    assert pixels[1, 1].tolist() == [0] * 3


def test_cmyk(tmp_path: Path) -> None:
    image = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    for kind in ("jpg", "tiff"):
        pixels = fitted(tmp_path / f"a.{kind}", image)
        assert np.abs(pixels.astype(int) - (255, 0, 0)).max() <= 4


@pytest.mark.parametrize("kind", ["png", "tiff"])
@pytest.mark.parametrize("brightest", [65535, 30_000, 200])
def test_sixteen_bits_become_eight(tmp_path: Path, kind: str, brightest: int) -> None:
    """A dark one (nothing above 255 of 65535) used to be taken for one of 8 bits and to come out bright."""
    values = np.linspace(0, brightest, 960).astype(np.uint16).reshape(24, 40)
    pixels = fitted(tmp_path / f"a.{kind}", Image.fromarray(values))
    assert np.array_equal(pixels, np.dstack([(values / 257).round().astype(np.uint8)] * 3))


def big_endian_tiff(values: np.ndarray) -> bytes:
    height, width = values.shape
    data = values.astype(">u2").tobytes()
    short, long = 3, 4
    tags = [(256, short, width), (257, short, height), (258, short, 16), (259, short, 1), (262, short, 1),
            (273, long, 8), (277, short, 1), (278, short, height), (279, long, len(data))]  # fmt: skip
    entries = [struct.pack(">HHI", t, kind, 1) + (struct.pack(">HH", v, 0) if kind == short else struct.pack(">I", v))
               for t, kind, v in tags]  # fmt: skip
    head = b"MM\x00*" + struct.pack(">I", 8 + len(data))
    return head + data + struct.pack(">H", len(tags)) + b"".join(entries) + struct.pack(">I", 0)


def test_sixteen_bits_of_the_other_byte_order(tmp_path: Path) -> None:
    """Scanners write these; they used to come out white."""
    values = np.linspace(0, 65535, 960).astype(np.uint16).reshape(24, 40)
    content = big_endian_tiff(values)
    with Image.open(io.BytesIO(content)) as image:
        assert image.mode == "I;16B"
    (tmp_path / "scan.tif").write_bytes(content)
    pixels = load_pixels(tmp_path / "scan.tif", exact(40, 24))
    assert np.array_equal(pixels, np.dstack([(values / 257).round().astype(np.uint8)] * 3))


@pytest.mark.parametrize("top", [1.0, 255.0, 65535.0])
def test_floating_point(tmp_path: Path, top: float) -> None:
    """The range of a float TIFF is not written in it; 0 to 1, the usual one, used to come out black."""
    values = np.linspace(0, top, 960, dtype=np.float32).reshape(24, 40)
    values[0, 0] = np.nan
    pixels = fitted(tmp_path / "a.tiff", Image.fromarray(values))
    assert pixels.max() == 255
    assert pixels[0, 0].tolist() == [0] * 3


def test_an_animation_is_its_first_image(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (4, 4), c) for c in ((250, 0, 0), (0, 250, 0))]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert (load_pixels(tmp_path / "a.gif", exact(4, 4)) == (250, 0, 0)).all()
    assert (fitted(tmp_path / "a.png", frames[0], save_all=True, append_images=frames[1:]) == (250, 0, 0)).all()


# -- damaged


@pytest.mark.parametrize("kind", ["png", "jpg", "webp", "gif", "tiff"])
def test_a_truncated_image_is_an_error_that_names_it(tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"broken.{kind}"
    Image.fromarray(np.kron(NOISE, np.ones((8, 8, 1), np.uint8))).save(file)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(BrokenImageError, match=f"broken.{kind}"):
        load_pixels(file, exact(320, 192))


@pytest.mark.parametrize("content", [b"", b"<html>", b"\x89PNG\r\n\x1a\n"])
def test_no_image_at_all(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.png").write_bytes(content)
    with pytest.raises(OSError, match=r"x\.png"):
        load_pixels(tmp_path / "x.png", exact(8, 8))
    with pytest.raises(OSError, match=r"gone\.png"):
        load_pixels(tmp_path / "gone.png", exact(8, 8))


def test_too_little_memory_costs_only_that_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise MemoryError

    draw_image(64, 64, 0).save(tmp_path / "huge.png")
    monkeypatch.setattr(Image.Image, "resize", fail)
    with pytest.raises(BrokenImageError, match=r"huge\.png"):
        load_pixels(tmp_path / "huge.png", resize_crop_for(64, 64, (Size(32, 32),)))
