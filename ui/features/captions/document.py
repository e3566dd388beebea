"""The caption of an image while it is edited: nothing of its file is lost or overwritten unseen."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from modules.data.captions.caption_file import CaptionFile, parse_caption_file, read_caption_file, with_text
from modules.system.atomic import write_bytes

DiskState = Literal["same", "reloaded", "conflict"]


class ConflictError(Exception):
    """Another program changed the file while it was edited here."""


class CaptionDocument:
    """The caption file of an image: the text as it is edited, and the bytes that were last read or written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = read_caption_file(path)
        self.text = self.file.text
        self.first = self.file.content
        """The content when it was opened; `revert` restores it."""

    @property
    def is_edited(self) -> bool:
        """Whether the text differs from the file. A missing file equals an empty text."""
        return self.text != self.file.text

    @property
    def differs_from_first(self) -> bool:
        """Whether `revert` would change anything."""
        return self.is_edited or self.file.content != self.first

    def edit(self, text: str) -> None:
        """Set the text; a file that is not editable keeps its own."""
        if self.file.is_editable:
            self.text = text

    def save(self) -> bool:
        """Write the text if it was edited, and return whether it was.

        Raises ConflictError if the file has changed since it was read, and OSError if it cannot be written.
        """
        if not self.is_edited:
            return False
        if read_caption_file(self.path).content != self.file.content:
            raise ConflictError(self.path.name)
        self._write(with_text(self.file, self.text))
        return True

    def look_at_disk(self) -> DiskState:
        """Read the file again: its new text is shown if nothing was edited here; otherwise there is a conflict.

        Raises OSError if it cannot be read.
        """
        now = read_caption_file(self.path)
        if now.content == self.file.content:
            return "same"
        if self.is_edited and now.text != self.text:
            return "conflict"
        self.file, self.text = now, now.text
        return "reloaded"

    def keep_mine(self) -> None:
        """End a conflict: the text here is written over the file's. Its content can be reverted to."""
        now = read_caption_file(self.path)
        if not now.is_editable:
            now = CaptionFile(now.content)
        self.first = now.content
        self.file = now
        self._write(with_text(now, self.text))

    def take_theirs(self) -> None:
        """End a conflict: the file's text replaces the one here."""
        self.file = read_caption_file(self.path)
        self.text = self.file.text

    def revert(self) -> None:
        """Show the text as it was when the file was opened; it is written with the next save."""
        self.edit(parse_caption_file(self.first or b"").text)

    def _write(self, content: bytes) -> None:
        write_bytes(Path(os.path.realpath(self.path)), content)  # a link stays one
        self.file = read_caption_file(self.path)
        self.text = self.file.text
