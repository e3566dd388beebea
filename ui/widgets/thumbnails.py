"""Thumbnails and fitted versions of images, made on background threads, and a bounded cache of them on disk."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal
from uuid import uuid4

from PIL import Image, ImageOps

from modules.data.archives import status_of
from modules.data.images import open_image

Enlarge = Literal["no", "smooth", "pixels"]
Draw = Callable[[], Image.Image]
_PIXELS = Image.Resampling.NEAREST
_GAP_PX = 2  # between the images of a collage
_MAX_BYTES = 200 * 2**20
_KEPT_SHARE = 0.8  # of the limit, once it is exceeded
_WRITES_BETWEEN_LOOKS = 500
_SMALL_BYTES = 32 * 2**10  # such an image is decoded as fast as its thumbnail
_FORMAT = 1  # part of the keys: increase it when thumbnails of the same file would change
_log = logging.getLogger(__name__)


def load_fitted(path: Path, width_px: int, height_px: int, *, enlarge: Enlarge = "no") -> Image.Image:
    """Return an image, upright, fitted to a box.

    Raises BrokenImageError, an OSError, if it cannot be read.
    """
    with open_image(path) as image:
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
    with open_image(path) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


def load_covering(path: Path, width_px: int, height_px: int) -> Image.Image:
    """Return the centre of an image as a rectangle of the given sides. Raises the errors of `load_fitted`."""
    with open_image(path) as image:
        image.draft("RGB", (width_px * 2, height_px * 2))
        upright = ImageOps.exif_transpose(image).convert("RGB")
    return ImageOps.fit(upright, (width_px, height_px))


def collage(
    paths: Sequence[Path], width_px: int, height_px: int, *, gap_colour: str, cache: ThumbnailCache
) -> Image.Image:
    """Return one image for several: the first large, three others next to it; one alone fills the place.

    Unreadable images are left out. Raises OSError if none is readable.
    """
    small_px = (height_px - 2 * _GAP_PX) // 3
    main_px = width_px - small_px - _GAP_PX if len(paths) > 3 else width_px
    main = _first_readable(paths, lambda p: cache.cover(p, main_px, height_px))
    if main_px == width_px:
        return main
    result = Image.new("RGB", (width_px, height_px), gap_colour)
    result.paste(main, (0, 0))
    for row, path in enumerate(paths[1:4]):
        top = row * (small_px + _GAP_PX)
        bottom = height_px if row == 2 else top + small_px
        try:
            result.paste(cache.cover(path, width_px - main_px - _GAP_PX, bottom - top), (main_px + _GAP_PX, top))
        except OSError:
            continue
    return result


def with_insets(image: Image.Image, insets: Sequence[Image.Image], *, border_px: int) -> Image.Image:
    """Return a copy of an image with small ones in its upper left corner, one below the other, each with a border."""
    if not insets:
        return image
    result, top = image.convert("RGB"), 0
    for inset in insets:
        bordered = ImageOps.expand(inset, border_px, "white")
        result.paste(bordered, (0, top))
        top += bordered.height
    return result


def _first_readable(paths: Sequence[Path], load: Callable[[Path], Image.Image]) -> Image.Image:
    for path in paths[:-1]:
        try:
            return load(path)
        except OSError:
            continue
    return load(paths[-1])


class ThumbnailCache:
    """Thumbnails in files, by the path, size and modification time of their image and their own size.

    A file is written under a temporary name and renamed. Once they take more than `max_bytes`, those that were used
    longest ago are removed. It only saves time: if it cannot be read or written, everything works without it.
    Threads may share one.
    """

    def __init__(self, folder: Path, *, max_bytes: int = _MAX_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._writes_until_look = 0

    def fit(self, path: Path, width_px: int, height_px: int, *, enlarge: Enlarge = "no") -> Image.Image:
        """Return an image as `load_fitted` does, kept on disk."""
        draw = partial(load_fitted, path, width_px, height_px, enlarge=enlarge)
        return self._keep(path, f"fitted {width_px} {height_px} {enlarge}", draw)

    def cover(self, path: Path, width_px: int, height_px: int) -> Image.Image:
        """Return an image as `load_covering` does, kept on disk."""
        return self._keep(path, f"covering {width_px} {height_px}", partial(load_covering, path, width_px, height_px))

    def _keep(self, path: Path, kind: str, draw: Draw) -> Image.Image:
        status = status_of(path)
        if status.size_bytes <= _SMALL_BYTES:
            return draw()
        facts = f"{_FORMAT} {os.fsencode(path)!r} {status.size_bytes} {status.mtime_ns} {kind}"
        key = hashlib.blake2b(facts.encode(), digest_size=16).hexdigest()
        file = self._folder / key[:2] / f"{key}.jpg"
        thumbnail = _read(file)
        if thumbnail is None:
            thumbnail = draw()
            self._write(file, thumbnail)
        return thumbnail

    def _write(self, file: Path, image: Image.Image) -> None:
        content = io.BytesIO()
        image.save(content, "JPEG", quality=88)
        temporary = file.with_name(f".{file.stem}.{uuid4().hex[:8]}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_bytes(content.getvalue())  # not flushed: a damaged one is drawn again
                temporary.replace(file)
            finally:
                temporary.unlink(missing_ok=True)
            self._look_at_size()
        except OSError as error:
            _log.info("The thumbnail cache %s cannot be written: %s", self._folder, error)

    def _look_at_size(self) -> None:
        """Remove the files that were used longest ago if all of them take too much; not at every write."""
        with self._lock:
            self._writes_until_look -= 1
            if self._writes_until_look > 0:
                return
            self._writes_until_look = _WRITES_BETWEEN_LOOKS
        files = sorted((s.st_mtime_ns, s.st_size, p) for p in self._folder.glob("*/*") for s in [p.stat()])
        too_many = sum(size for _, size, _ in files)
        if too_many <= self._max_bytes:
            return
        too_many -= int(self._max_bytes * _KEPT_SHARE)
        for _, size, path in files:
            if too_many <= 0:
                break
            path.unlink(missing_ok=True)
            too_many -= size


def _read(file: Path) -> Image.Image | None:
    """Return a thumbnail and mark it as used; None if its file is missing or damaged."""
    try:
        with open_image(file) as image:
            result = image.convert("RGB")
        os.utime(file)
    except OSError:
        return None
    return result
