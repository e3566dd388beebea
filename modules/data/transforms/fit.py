"""Bringing a decoded image of any mode to RGB, and the versions of the resamplers. Torch-free."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# Parts of the cache keys: increase one when the pixels of the same image would change.
RESAMPLER = "pillow-lanczos-reducing-2"
UPSAMPLER = "pillow-bicubic-1"  # of images that are resized to more pixels
AUGMENTATION = "pillow-affine-1"  # of images that are rotated, mirrored, cut out or recoloured

Pixels = NDArray[np.uint8]


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
