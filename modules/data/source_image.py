"""An image of a source, as a scan found it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from modules.data.buckets import Size
from modules.data.captions.sources import CaptionFault
from modules.data.folder_files import stem_of

_LONGEST = 64  # scaled to cover a bucket, a longer strip would take gigabytes


@dataclass(frozen=True, slots=True)
class SourceImage:
    """An image file, or a clip of several frames; its size is after applying the EXIF orientation.

    All images in a folder share its path, and their own paths are made when needed: a million paths would take 300 MB.
    The path of an image in an archive leads into the archive. `is_transparent`: it may have transparent places.
    `caption_from` is the file of its caption, or the suffix that the image's file has instead of its own there.
    A prompt without an image is one too, with `has_image` unset: its path leads to its line in the file of prompts,
    and its size is the size of the images sampled for it.
    `rejected` is the other image of a preference pair, whose chosen image this is.
    """

    folder: Path
    file_name: str
    width_px: int
    height_px: int
    size_bytes: int
    mtime_ns: int
    captions: tuple[str, ...]
    caption_fault: CaptionFault = ""
    caption_from: Path | str | None = None
    is_transparent: bool = False
    has_image: bool = True
    rejected: SourceImage | None = None
    num_frames: int = 1

    @property
    def size(self) -> Size:
        """Its width, height and number of frames."""
        return Size(self.width_px, self.height_px, self.num_frames)

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self.folder / self.file_name

    @property
    def path_text(self) -> str:
        """The path as text, for which no path has to be made."""
        folder = str(self.folder)  # a path keeps it, so that this is a fraction of the time of `os.path.join`
        return folder + self.file_name if folder.endswith(os.sep) else folder + os.sep + self.file_name

    @property
    def caption_file(self) -> Path | None:
        """The file of its caption; None without one."""
        if isinstance(self.caption_from, str):
            return self.folder / (stem_of(self.file_name) + self.caption_from)
        return self.caption_from


def too_long(width_px: int, height_px: int) -> str:
    """Return the reason why an image is too long to be used; empty for others."""
    if max(width_px, height_px) > _LONGEST * min(width_px, height_px):
        return f"more than {_LONGEST} times as long as wide ({width_px}x{height_px})"
    return ""
