"""Thumbnails and fitted versions of images, made on background threads. No Tk."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from PIL import Image, ImageOps

from modules.data.images import opened

Enlarge = Literal["no", "smooth", "pixels"]
_PIXELS = Image.Resampling.NEAREST


def load_fitted(path: Path, width_px: int, height_px: int, *, enlarge: Enlarge = "no") -> Image.Image:
    """Return an image, upright, fitted to a box.

    Raises BrokenImageError, an OSError, if it cannot be read.
    """
    with opened(path) as image:
        image.draft("RGB", (width_px * 2, height_px * 2))
        upright = ImageOps.exif_transpose(image).convert("RGB")
    factor = min(width_px / upright.width, height_px / upright.height)
    if factor <= 1 or enlarge == "no":
        upright.thumbnail((width_px, height_px))
        return upright
    factor, method = (factor, Image.Resampling.BICUBIC) if enlarge == "smooth" else (int(factor), _PIXELS)
    return upright.resize((round(upright.width * factor), round(upright.height * factor)), method)


def load_whole(path: Path) -> Image.Image:
    """Return an image, upright, in its own size. Raises BrokenImageError, an OSError, if it cannot be read."""
    with opened(path) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


def load_square(path: Path, side_px: int) -> Image.Image:
    """Return the centre of an image as a square of the given side. Raises the errors of `load_fitted`."""
    with opened(path) as image:
        image.draft("RGB", (side_px * 2, side_px * 2))
        upright = ImageOps.exif_transpose(image).convert("RGB")
    return ImageOps.fit(upright, (side_px, side_px))
