"""Decoding an image and resizing and cropping it to its bucket. Torch-free."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from modules.data.buckets import ResizeCrop
from modules.data.images import opened, upright

# Part of every cache key: increase it when the pixels of the same image would change.
RESAMPLER = "pillow-lanczos-reducing-2"

Pixels = NDArray[np.uint8]


def load_pixels(path: Path, resize_crop: ResizeCrop) -> Pixels:
    """Return the image at its bucket's size: uint8, (height, width, 3).

    Rotated to its EXIF orientation, transparency on white, resized with Lanczos, center-cropped. An image that already
    has the bucket's size is not resampled. Raises BrokenImageError, an OSError, where it cannot be decoded.
    """
    wanted = (resize_crop.scaled.width_px, resize_crop.scaled.height_px)
    left, top = resize_crop.crop_left_px, resize_crop.crop_top_px
    with opened(path) as raw:
        image = flattened(upright(raw))
        if image.size != wanted:
            image = image.resize(wanted, Image.Resampling.LANCZOS, reducing_gap=3.0)
        if not resize_crop.is_exact:
            image = image.crop((left, top, left + resize_crop.bucket.width_px, top + resize_crop.bucket.height_px))
        return np.asarray(image, dtype=np.uint8)


def flattened(image: Image.Image) -> Image.Image:
    """Return an image of any mode as RGB, transparency on white."""
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        image = _eight_bits(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    """Return a grayscale image of more than 8 bits as 8-bit. 32-bit values have no fixed range: it is guessed."""
    values = np.nan_to_num(np.asarray(image, dtype=np.float32))
    most = float(values.max())
    if image.mode.startswith("I;16") or most > 255:
        values = values / 257.0
    elif image.mode == "F" and most <= 1:
        values = values * 255.0
    return Image.fromarray(values.round().clip(0, 255).astype(np.uint8))
