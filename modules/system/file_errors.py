"""Errors of the file system as a sentence that names the file, and an advice."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

NO_THREAD = "can't start new thread"
"""Python's message if the system has no memory, or no number, for another thread."""

_NUMBER = re.compile(r"\[(?:Errno|WinError) -?\d+\]\s*")
_CLASS = re.compile(r"(?:Got:?\s*)?\b(?:[\w.]*[a-z]Error|[\w.]*Exception)\b:?\s*")
_CONNECTION = re.compile(
    r"Max retries exceeded|Connection(?: |Pool)|name resolution|Name or service not known|getaddrinfo"
)
_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
_DENIED = {errno.EACCES, errno.EPERM}


class UnconfirmedError(OSError):
    """A file is in its place, but the disk did not confirm its new name: it may be the old one after a power failure.

    Not an error of the content: that is complete.
    """


def name_destination(error: OSError, destination: Path, temporary: Path) -> OSError:
    """Return an error that names the destination, for one of its temporary name or of no file at all."""
    name = error.filename
    if error.errno is None:
        return error
    if name is None or isinstance(name, int):
        error.filename = str(destination)
        return error
    path = Path(os.fsdecode(name))
    if path != temporary and temporary not in path.parents:
        return error
    return OSError(error.errno, error.strerror, str(destination / path.relative_to(temporary)))


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether an error means that a disk, or the user's share of it, is full."""
    return isinstance(error, OSError) and error.errno in _FULL


def describe_file_error(error: OSError) -> tuple[str, str]:
    """Return a sentence that names the file and what is wrong with it, and an advice."""
    if isinstance(error, UnconfirmedError):
        return (
            f"{_path_of(error)} was written, but the disk did not confirm it ({_reason(error)}).",
            "It may be lost if the power fails now. Check the disk.",
        )
    if error.errno is None:
        return f"A file could not be read or written: {error}.", "Check the path and its permissions."
    file = _path_of(error)
    match error.errno:
        case number if number in _FULL:
            what = f"The disk is full: {file} could not be written." if error.filename else "The disk is full."
            return what, "Free some space, or choose another folder."
        case number if number in _DENIED:
            return f"{file} may not be accessed: {_reason(error)}.", "Check its permissions, or choose another folder."
        case errno.EROFS:
            return f"{file} is on a disk that can only be read.", "Choose a folder on another disk."
        case errno.ENOENT:
            return f"{file} does not exist.", "Check the path."
        case errno.EIO:
            return f"{file} could not be read or written: the disk reported an error.", "Check the disk."
        case errno.ENAMETOOLONG | errno.EILSEQ:
            return f"{file} is not a possible name here: {_reason(error)}.", "Choose another name."
        case errno.EMFILE | errno.ENFILE:
            return f"Too many files are open: {file} could not be opened.", "Close other programs and try again."
        case _:
            return f"{file} could not be read or written: {_reason(error)}.", "Check the path and its permissions."


def plain_reason(error: BaseException, *, names_file: bool = False) -> str:
    """Return why something failed, as the end of a sentence: without Python's names and numbers of errors.

    With `names_file` the file of an error of the file system is named, for a sentence that does not name it.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return describe_file_error(error)[0].rstrip(".") if names_file else _reason(error)
    if isinstance(error, KeyError) and error.args:
        return f"{error.args[0]} is missing"
    lines = str(error).strip().splitlines()
    text = _CLASS.sub("", _NUMBER.sub("", lines[0] if lines else "")).strip().rstrip(".")
    return "the connection failed" if _CONNECTION.search(text) else text or "no reason was given"


def _path_of(error: OSError) -> str:
    name = error.filename
    if name is None or isinstance(name, int):
        return "A file"
    return os.fsdecode(name).encode("utf-8", "backslashreplace").decode()  # a name that is not valid UTF-8


def _reason(error: OSError) -> str:
    return error.strerror or (os.strerror(error.errno) if error.errno else str(error))
