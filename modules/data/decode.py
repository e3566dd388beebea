"""From an opened image of any mode to RGB: colour profiles, high bit depths, transparency."""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np
from PIL import Image, ImageCms, ImageColor

Rgb = tuple[int, int, int]
WHITE: Rgb = (255, 255, 255)

_ROUNDING = 2  # of 255: the sRGB profiles of different makers differ that much
_MODES_OF_SPACES = {"RGB ": "RGB", "GRAY": "L", "CMYK": "CMYK"}


def colour_of(text: str) -> Rgb | None:
    """Return a colour from its name or its hexadecimal value ("white", "#ffcc00"); None if it is not one."""
    try:
        return ImageColor.getrgb(text.strip())[:3]
    except ValueError:
        return None


def flatten(image: Image.Image, background: Rgb = WHITE) -> Image.Image:
    """Return an image of any mode as sRGB of 8 bits, its transparent places on `background`.

    An image with a colour profile other than sRGB is converted with LittleCMS, at its relative colorimetric intent; one
    whose profile is damaged or belongs to another colour space is used as if it had none.
    """
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        image = _eight_bits(image)
    if image.has_transparency_data:
        image = _in_srgb(image if image.mode == "LA" else image.convert("RGBA")).convert("RGBA")
        behind = Image.new("RGBA", image.size, (*background, 255))
        return Image.alpha_composite(behind, image).convert("RGB")
    return _in_srgb(image).convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    """Return a grayscale image of more than 8 bits as 8-bit. 32-bit values have no fixed range: it is guessed."""
    values = np.nan_to_num(np.asarray(image, dtype=np.float32))
    most = float(values.max())
    if image.mode.startswith("I;16") or 255 < most <= 65535:
        values = values / 257.0
    elif image.mode == "F" and most <= 1:
        values = values * 255.0
    elif most > 65535:
        values = values * (255.0 / most)
    return Image.fromarray(values.round().clip(0, 255).astype(np.uint8))


def _in_srgb(image: Image.Image) -> Image.Image:
    """Return an image in sRGB; the image itself if it has no profile, or sRGB's."""
    if image.mode == "LAB":
        return _apply_transform(image, _from_lab())
    content = image.info.get("icc_profile")
    if not isinstance(content, bytes) or not content:
        return image
    if image.mode == "P":
        image = image.convert("RGB")
    if image.mode == "LA":
        gray, alpha = image.split()
        gray.info["icc_profile"] = content
        converted = _in_srgb(gray).convert("RGB")
        converted.putalpha(alpha)
        return converted
    if (transform := _to_srgb(content, image.mode)) is None:
        return image
    return _apply_transform(image, transform)


def _apply_transform(image: Image.Image, transform: ImageCms.ImageCmsTransform) -> Image.Image:
    converted = transform.apply(image)
    converted.info.pop("icc_profile", None)
    return converted


@lru_cache(maxsize=64)
def _to_srgb(content: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """Return the conversion of a profile to sRGB; None if it changes next to nothing, or if it does not fit."""
    try:
        profile = ImageCms.ImageCmsProfile(io.BytesIO(content))
        wanted = _MODES_OF_SPACES.get(profile.profile.xcolor_space)
        if wanted != ("RGB" if mode == "RGBA" else mode):
            return None
        transform = ImageCms.buildTransform(
            profile,
            ImageCms.createProfile("sRGB"),
            mode,
            "RGBA" if mode == "RGBA" else "RGB",
            renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
            flags=ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return None
    return None if mode != "CMYK" and _changes_nothing(transform, mode) else transform


def _changes_nothing(transform: ImageCms.ImageCmsTransform, mode: str) -> bool:
    """Return whether a conversion leaves colours as they are, but for rounding: whatever the profile is called."""
    levels = np.arange(0, 256, 15, dtype=np.uint8)
    colours = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(1, -1, 3)
    probe = Image.fromarray(colours).convert(mode)
    before, after = (np.asarray(i.convert("RGB"), dtype=np.int16) for i in (probe, transform.apply(probe)))
    return int(np.abs(after - before).max()) <= _ROUNDING


@lru_cache(maxsize=1)
def _from_lab() -> ImageCms.ImageCmsTransform:
    return ImageCms.buildTransform(ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB"), "LAB", "RGB")


def changes_colours(image: Image.Image) -> bool:
    """Return whether `flatten` converts the colours of an image from another colour space, such as Adobe RGB."""
    if image.mode in ("LAB", "CMYK"):
        return True
    content = image.info.get("icc_profile")
    mode = {"P": "RGB", "LA": "L"}.get(image.mode, image.mode)
    return isinstance(content, bytes) and bool(content) and _to_srgb(content, mode) is not None
