"""Checks of single images: whether they are readable, and their pixels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from modules.data.archives import archive_of
from modules.data.doctor.finding import CheckSpec, Examination, Finding, SkippedFile
from modules.data.doctor.measure import Measurement
from modules.data.listing import SUFFIXES
from modules.system.problem import with_article

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
    """Return the suffix that a file should have; empty if it has the right one, or if the right one is unknown."""
    right = SUFFIXES_OF.get(image_format, ())
    is_known = any(file.suffix.lower() in suffixes for suffixes in SUFFIXES_OF.values())
    if not right or not is_known or file.suffix.lower() in right or archive_of(file) is not None:
        return ""
    return right[0]


MIN_SHARPNESS = 0.08  # photographs have 0.4 and more, and with a Gaussian blur of 3 to 4 px at 512 px less than this
MAX_NOISE = 14.0  # between textures (8 at most) and independent pixels (20); single dots, as of stars, have 14 to 21
MAX_DARK = 0.2  # even the brightest hundredth is darker: a night scene with a lamp or a window is not
MIN_BRIGHT = 0.65  # even the darkest or most colourful hundredth is brighter: a drawing on white paper is not
MIN_SPREAD = 6.0  # of 255: what noise and compression leave of a plain area
MIN_BARS = 0.03  # of the image: thinner ones are the antialiasing of an edge
MIN_TRANSPARENT = 0.01  # of the image


def _find_unreadable(examined: Examination) -> Iterator[Finding]:
    for image in examined.images:
        if image.broken:
            yield _describe_unreadable(image.path, f"The image is damaged: {image.broken}.")
        if image.broken_rejected and image.example.image.rejected is not None:
            path = image.example.image.rejected.path
            yield _describe_unreadable(path, f"The rejected image of a pair is damaged: {image.broken_rejected}.")
    yield from map(_describe_skipped, examined.skipped)


def _describe_unreadable(path: Path, reason: str) -> Finding:
    fix = "Repair the file, copy it again, or remove it."
    return Finding((path,), reason, 0, "images read", fix, "error")


def _describe_skipped(file: SkippedFile) -> Finding:
    reason = f"The file is not used: {file.reason}."
    if file.path.name.startswith("."):
        fix = "Nothing, if it is not meant to be trained; else rename it."
        return Finding((file.path,), reason, 0, "images read", fix, "info")
    if file.path.suffix.lower() in SUFFIXES and not file.is_image:
        return _describe_unreadable(file.path, reason)
    return Finding((file.path,), reason, 0, "images read", "Correct the cause, or remove the file.")


def _find_blurred(examined: Examination) -> Iterator[Finding]:
    for image, measurements in examined.measurements():
        if (
            measurements.sharpness is not None
            and measurements.sharpness < MIN_SHARPNESS
            and not _is_plain(measurements)
        ):
            yield Finding(
                (image.path,),
                f"No part of the image is sharp (below {MIN_SHARPNESS:g}; sharp photographs have 0.4 or more).",
                measurements.sharpness,
                "sharpness",
                "Replace it by a sharper image or remove it, unless the blur is meant to be learned.",
            )


def _find_noise(examined: Examination) -> Iterator[Finding]:
    for image, measurements in examined.measurements():
        if measurements.noise is not None and measurements.noise > MAX_NOISE and not _is_plain(measurements):
            yield Finding(
                (image.path,),
                f"The image is noise throughout (above {MAX_NOISE:g}; photographs of grass or text have 7 or less).",
                measurements.noise,
                "sharpness of the median place",
                "Remove it if the file is damaged. Stars, halftone dots and dithering measure alike.",
            )


def _find_dark(examined: Examination) -> Iterator[Finding]:
    for image, measurements in examined.measurements():
        if measurements.brightest < MAX_DARK and not _is_plain(measurements):
            yield Finding(
                (image.path,),
                f"The image is dark throughout: even its brightest hundredth is below {MAX_DARK:.0%} of white.",
                measurements.brightest * 100,
                "% of white",
                "Brighten it in an image editor, or remove it.",
            )


def _find_bright(examined: Examination) -> Iterator[Finding]:
    for image, measurements in examined.measurements():
        if measurements.darkest > MIN_BRIGHT and not _is_plain(measurements):
            yield Finding(
                (image.path,),
                "The image is pale throughout: even its darkest or most colourful hundredth is above "
                f"{MIN_BRIGHT:.0%} of white.",
                measurements.darkest * 100,
                "% of white",
                "Use a correctly exposed version, or remove it.",
            )


def _find_plain(examined: Examination) -> Iterator[Finding]:
    for image, measurements in examined.measurements():
        if _is_plain(measurements):
            yield Finding(
                (image.path,),
                f"The image is nearly of one colour: its colours vary by less than {MIN_SPREAD:g} of 255.",
                measurements.spread,
                "of 255",
                "Remove it, unless plain areas are meant to be learned.",
            )


def _find_letterbox(examined: Examination) -> Iterator[Finding]:
    for image, measurements in examined.measurements():
        bars = measurements.bars
        if bars.area < MIN_BARS or _is_plain(measurements):
            continue
        edges = [("left", bars.left), ("right", bars.right)] if bars.left and bars.right else []
        edges += [("top", bars.top), ("bottom", bars.bottom)] if bars.top and bars.bottom else []
        sides = ", ".join(f"{name} {share:.1%}" for name, share in edges)
        yield Finding(
            (image.path,),
            f"The image has bars of one colour at its edges ({sides}), which would be learned.",
            bars.area * 100,
            "% bars",
            "Crop the bars away.",
        )


def _find_surprises(examined: Examination) -> Iterator[Finding]:
    for image, measurements in examined.measurements():
        is_mask = image.example.mask is not None and image.example.mask.is_alpha
        if measurements.transparent > MIN_TRANSPARENT and not is_mask:
            red, green, blue = image.example.background or (255, 255, 255)
            yield Finding(
                (image.path,),
                f"The image has transparent places, which are trained as the colour #{red:02x}{green:02x}{blue:02x}.",
                measurements.transparent * 100,
                "% transparent",
                "Choose the background colour of the concept, or use the transparency as mask.",
                "info",
            )
        if measurements.is_converted:
            yield Finding(
                (image.path,),
                "The image is not in sRGB; its colours are converted.",
                1,
                "colour profile",
                "Compare the colours in a contact sheet (the verb preview).",
                "info",
            )
        if measurements.is_animated:
            yield Finding(
                (image.path,),
                "The file is an animation; only its first image is used.",
                1,
                "image used",
                "Save the images that are to be trained as files of their own.",
                "info",
            )


def _find_wrong_suffixes(examined: Examination) -> Iterator[Finding]:
    for image, measurements in examined.measurements():
        suffix = right_suffix(image.path, measurements.format)
        if suffix:
            yield Finding(
                (image.path,),
                f"The file is {with_article(measurements.format)} image but is named {image.path.suffix}. It is read "
                "here; other programs may refuse it.",
                1,
                "wrong suffix",
                f"Rename it to {image.path.stem}{suffix}.",
                "info",
            )


def _is_plain(measurements: Measurement) -> bool:
    return measurements.spread < MIN_SPREAD


UNREADABLE = CheckSpec(
    "unreadable", "Unreadable or skipped files", "Files that are damaged or left out of the run.", _find_unreadable
)
BLURRED = CheckSpec("blurred", "Blurred images", "Images without any sharp place.", _find_blurred)
NOISE = CheckSpec(
    "only_noise", "Images of noise", "Images whose pixels are unrelated to their neighbours.", _find_noise
)
DARK = CheckSpec("dark", "Dark images", "Images without any bright place.", _find_dark)
BLOWN_OUT = CheckSpec("blown_out", "Blown out images", "Images without any dark place.", _find_bright)
LOW_VARIANCE = CheckSpec(
    "low_variance", "Images of nearly one colour", "Images that show next to nothing.", _find_plain
)
WRONG_SUFFIX = CheckSpec(
    "wrong_suffix", "Wrong file suffixes", "Images whose suffix belongs to another format.", _find_wrong_suffixes
)
LETTERBOX = CheckSpec(
    "letterbox", "Letterbox bars", "Images with bars of one colour at opposite edges.", _find_letterbox
)
SURPRISING_FORMAT = CheckSpec(
    "surprising_format",
    "Transparency, colour profiles, animations",
    "Images that are trained differently from what some programs show.",
    _find_surprises,
)
