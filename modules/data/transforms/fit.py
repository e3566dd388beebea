"""Decoding an image and resizing and cropping it to its bucket. Torch-free."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from modules.data.buckets import ResizeCrop
from modules.data.decode import WHITE, Rgb, flattened
from modules.data.images import opened, upright

# Part of every cache key: increase it when the pixels of the same image would change.
RESAMPLER = "pillow-lanczos-reducing-3"

Pixels = NDArray[np.uint8]


def load_pixels(path: Path, resize_crop: ResizeCrop, background: Rgb = WHITE) -> Pixels:
    """Return the image at its bucket's size: uint8, (height, width, 3).

    Rotated to its EXIF orientation, in sRGB, transparency on `background`, resized with Lanczos, center-cropped. An
    image that already has the bucket's size is not resampled. Raises BrokenImageError, an OSError, where it cannot be
    decoded.
    """
    wanted = (resize_crop.scaled.width_px, resize_crop.scaled.height_px)
    left, top = resize_crop.crop_left_px, resize_crop.crop_top_px
    with opened(path) as raw:
        image = flattened(upright(raw), background)
        if image.size != wanted:
            image = image.resize(wanted, Image.Resampling.LANCZOS, reducing_gap=3.0)
        if not resize_crop.is_exact:
            image = image.crop((left, top, left + resize_crop.bucket.width_px, top + resize_crop.bucket.height_px))
        return np.asarray(image, dtype=np.uint8)
