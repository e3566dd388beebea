"""Opening files that others made: only regular ones, and never more of one than its reader can hold."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
from pathlib import Path
from typing import Any

MAX_JSON_BYTES = 2**26
"""Of settings and records; a model that is given in their place may have a thousand times as many."""
_CHUNK_BYTES = 2**20


class FileTooLargeError(OSError):
    """A file with more bytes than its reader accepts."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        super().__init__(errno.EFBIG, f"it is larger than {limit_bytes:,} bytes", str(path))


def is_file(path: Path) -> bool:
    """Return whether there is a file at a path; an impossible name, such as one that is too long, is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def size_of_file(path: Path) -> int:
    """Return the bytes of a file; 0 for one that cannot be read, or was removed meanwhile."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading.

    Raises OSError for anything else: reading a pipe, a socket or a device can block forever, or never end. Raises
    ValueError for an impossible name.
    """
    # Without O_NONBLOCK, opening a pipe without a writer would already block.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is a folder, a pipe or a device, not a file", str(path))
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file. Raises FileTooLargeError for more bytes, else as `open_regular` does."""
    content = bytearray()
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK_BYTES):  # `read` would at once get the memory for as much as it may return
            content += chunk
            if len(content) > max_bytes:
                raise FileTooLargeError(path, max_bytes)
    return bytes(content)


def read_json_object(path: Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any] | None:
    """Return the JSON object in a regular file; None if it is missing, unreadable, too large, or not an object."""
    try:
        return json_object_in(read_regular(path, max_bytes))
    except (OSError, ValueError):
        return None


def json_object_in(text: str | bytes) -> dict[str, Any] | None:
    """Return the JSON object in a text; None if the text is anything else, such as a half-written line."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
