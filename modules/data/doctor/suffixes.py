"""The suffixes of image files by format, for the formats that are common in training sets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from modules.data.archives import archive_of

SUFFIXES_OF: Mapping[str, tuple[str, ...]] = {
    "JPEG": (".jpg", ".jpeg", ".jfif", ".jpe"),
    "MPO": (".jpg", ".jpeg", ".jfif", ".jpe"),
    "PNG": (".png", ".apng"),
    "WEBP": (".webp",),
    "GIF": (".gif",),
    "BMP": (".bmp", ".dib"),
    "TIFF": (".tif", ".tiff"),
    "AVIF": (".avif", ".avifs"),
}
"""The suffixes of each format by Pillow's name, the usual one first."""


def right_suffix(file: Path, image_format: str) -> str:
    """Return the suffix that a file should have; empty if its own is right, or if that is unknown."""
    right = SUFFIXES_OF.get(image_format, ())
    is_known = any(file.suffix.lower() in suffixes for suffixes in SUFFIXES_OF.values())
    if not right or not is_known or file.suffix.lower() in right or archive_of(file) is not None:
        return ""
    return right[0]
