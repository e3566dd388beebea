"""Opening images in their EXIF orientation, with one error type for every kind of damaged file.

Pillow raises many exception types for damaged files, and not all of them are OSError or ValueError. It also reads files
that it runs as programs (PostScript), and images of any memory that has few enough pixels. So this is the only place
that opens an image: in the formats of concepts, within limits.
"""

from __future__ import annotations

import importlib
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import IO, BinaryIO

from PIL import Image, ImageFile, UnidentifiedImageError

from modules.data.archives import open_file

_UNREADABLE = (
    OSError,
    ValueError,
    SyntaxError,
    RuntimeError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    EOFError,
    MemoryError,
    struct.error,
    Image.DecompressionBombError,
)
# The most common ones first. Not among them is what Pillow does not decode by itself: EPS, for example, is a program,
# which it gives to Ghostscript.
FORMATS = (
    *(
        "PNG",
        "JPEG",
        "WEBP",
        "GIF",
        "BMP",
        "PPM",
        "TIFF",
        "AVIF",
        "JPEG2000",
        "ICO",
        "ICNS",
        "TGA",
        "PSD",
        "QOI",
        "DDS",
    ),
    *("DIB", "CUR", "BLP", "DCX", "FITS", "FLI", "FTEX", "GBR", "IM", "MSP", "PCD", "PCX", "PIXAR", "SGI", "SUN"),
    *("XBM", "XPM"),
)
"""Pillow's names of the formats that are opened, whatever a file is called; HEIC only with pillow-heif."""
_HEIC = "HEIF"
_MAX_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or 0)  # Pillow warns of half of them, and refuses more
_MAX_BYTES = 2**31  # as many as an RGB image takes that has the most pixels that Pillow decodes, 179 million
_SHARED_BYTES = 2**32  # of images that are decoded at once
_SMALL_BYTES = 2**26
# What an image takes at most while it is decoded, rotated and converted, in bytes for each pixel; all others 24. (Of a
# WebP with transparency these are 28; of an RGB image without a rotation and a colour profile 8.)
_PIXEL_BYTES = {**dict.fromkeys(("1", "L"), 8), **dict.fromkeys(("RGB", "CMYK", "YCbCr"), 12)}
_PIXEL_BYTES_OF_OTHERS = 24
_ORIENTATION = 0x0112
_METHODS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_SIDEWAYS = (5, 6, 7, 8)
_MAX_CHUNKS = 200_000  # of a PNG; one of a gigabyte has half as many
_PNG_TEXT = (b"eXIf", b"iTXt", b"tEXt", b"zTXt")


class BrokenImageError(OSError):
    """A file that is not an image, or a damaged one; `reason` explains it without the file's name."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.reason = reason


class MemoryShare:
    """The memory that all threads share that decode images; one waits until the others have left enough of it."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self.taken_bytes = 0
        self._changed = threading.Condition()
        self._own = threading.local()

    @contextmanager
    def take(self, num_bytes: int) -> Iterator[None]:
        """Reserve bytes within this context. A request for more than all of them waits until no other thread has any.

        A thread that has taken some already does not wait for more: it might be the one that it waits for.
        """
        depth = getattr(self._own, "depth", 0)
        with self._changed:
            while not depth and self.taken_bytes and self.taken_bytes + num_bytes > self._num_bytes:
                self._changed.wait()
            self.taken_bytes += num_bytes
        self._own.depth = depth + 1
        try:
            yield
        finally:
            self._own.depth = depth
            with self._changed:
                self.taken_bytes -= num_bytes
                self._changed.notify_all()


DECODING = MemoryShare(_SHARED_BYTES)
"""The share of all threads of this process."""


@contextmanager
def open_image(path: Path) -> Iterator[ImageFile.ImageFile]:
    """Open an image, also one inside an archive; any exception about it inside the block becomes a BrokenImageError.

    One that would take too much memory to decode is an error, and a large one may wait for other threads to leave
    their blocks. HEIC images need the package pillow-heif.
    """
    try:
        with open_file(path) as file, _identify(path, file) as image:
            num_bytes = _decoded_bytes(image)
            with DECODING.take(num_bytes) if num_bytes > _SMALL_BYTES else nullcontext():
                yield image
    except BrokenImageError:
        raise
    except UnidentifiedImageError as error:
        raise BrokenImageError(path, "not a readable image") from error
    except Image.DecompressionBombError as error:
        raise BrokenImageError(path, f"cannot be read (it has more than {_MAX_PIXELS:,} pixels)") from error
    except _UNREADABLE as error:
        raise BrokenImageError(path, f"cannot be read ({_reason(error)})") from error


def _identify(path: Path, file: BinaryIO) -> ImageFile.ImageFile:
    """Return an opened image of a format that Pillow, or pillow-heif, reads; what the file is called does not count."""
    try:
        return Image.open(file, formats=FORMATS)
    except UnidentifiedImageError:
        if not _is_heic(file):
            raise
    if not _can_read_heic():
        raise BrokenImageError(
            path, "a HEIC image, which needs the package pillow-heif (python -m trainer install pillow-heif)"
        )
    return Image.open(file, formats=[_HEIC])


def _decoded_bytes(image: Image.Image) -> int:
    """Return how much memory an image takes at most while it is decoded. Raises OSError where it is too much."""
    num_bytes = image.width * image.height * _PIXEL_BYTES.get(image.mode, _PIXEL_BYTES_OF_OTHERS)
    if num_bytes > _MAX_BYTES:
        raise OSError(
            f"{image.width:,}x{image.height:,} pixels in mode {image.mode} need {num_bytes / 1e9:.1f} GB to decode: "
            f"at most {_MAX_BYTES / 1e9:.1f} GB are allowed; make it smaller"
        )
    return num_bytes


def _is_heic(file: BinaryIO) -> bool:
    file.seek(0)
    head = file.read(12)
    file.seek(0)
    return head[4:8] == b"ftyp" and head[8:12] in _HEIC_BRANDS


@cache
def _can_read_heic() -> bool:
    """Return whether pillow-heif is installed, and let Pillow use it."""
    try:
        importlib.import_module("pillow_heif").register_heif_opener()
    except (ImportError, OSError):
        return False
    return True


def _reason(error: BaseException) -> str:
    """Return the reason of a system error without the file's name, which the message names already."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def upright_size(image: ImageFile.ImageFile) -> tuple[int, int]:
    """Return the width and the height of an opened image in its EXIF orientation, without decoding it.

    Raises OSError for a PNG that ends in the middle of its pixel data.
    """
    if image.format == "PNG" and image.fp is not None and _has_late_text(image.fp):
        image.load()
    width_px, height_px = image.size
    is_sideways = image.format != "TIFF" and _orientation(image) in _SIDEWAYS  # Pillow itself rotates TIFFs
    return (height_px, width_px) if is_sideways else (width_px, height_px)


def upright(image: Image.Image) -> Image.Image:
    """Return an opened image rotated to the orientation in its EXIF or XMP data."""
    image.load()
    _decoded_bytes(image)  # again: an icon can be larger than in its directory
    method = _METHODS.get(_orientation(image))
    return image if method is None else image.transpose(method)


def _orientation(image: Image.Image) -> int:
    try:
        # The base class's: PNG's would decode the whole image to read the chunks after its pixels.
        orientation = Image.Image.getexif(image).get(_ORIENTATION, 1)
    except _UNREADABLE:
        return 1  # damaged EXIF data does not affect the pixels
    return orientation if orientation in _METHODS else 1


def _has_late_text(file: IO[bytes]) -> bool:
    """Walk over a PNG's chunk headers and return whether text, which may set the orientation, follows the pixels."""
    here = file.seek(0, 1)
    size = file.seek(0, 2)
    position, is_late, has_text = 8, False, False
    num_chunks = 0
    while position + 8 <= size:
        num_chunks += 1
        if num_chunks > _MAX_CHUNKS:
            raise OSError(f"it has more than {_MAX_CHUNKS:,} chunks")
        file.seek(position)
        length, kind = struct.unpack(">I4s", file.read(8))
        position += 12 + length
        if kind == b"IDAT" and position > size:
            raise OSError("the file ends in the middle of the image")
        is_late |= kind == b"IDAT"
        has_text |= is_late and kind in _PNG_TEXT
        if kind == b"IEND":
            break
    file.seek(here)
    return has_text
