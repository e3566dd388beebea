"""Errors of the file system as a sentence that names the file, and an advice."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

NO_THREAD = "can't start new thread"
"""Python's message if the system has no memory, or no number, for another thread."""

# Compiled by the first error, not at each start.
_NUMBER = r"\[(?:Errno|WinError) -?\d+\]\s*"
_CLASS = r"(?:Got:?\s*)?\b(?:[\w.]*[a-z]Error|[\w.]*Exception)\b:?\s*"
_CONNECTION = r"Max retries exceeded|Connection(?: |Pool)|name resolution|Name or service not known|getaddrinfo"
_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
_DENIED = {errno.EACCES, errno.EPERM}
_OF_MACHINE = _FULL | {errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
_CHECK = "Check the path and its permissions."

# What is wrong, and what to do.
_FULL_DISK = ("The disk is full: {file} could not be written.", "Free some space, or choose another folder.")
_NO_ACCESS = ("{file} may not be accessed: {reason}.", "Check its permissions, or choose another folder.")
_NO_NAME = ("{file} is not a possible name here: {reason}.", "Choose another name.")
_NO_SUCH_SIZE = (
    "{file} could not be written: its disk has no files of this size.",
    "Choose a folder on another disk: FAT32, as on USB sticks, has files of up to 4 GB.",
)
_IN_USE = ("{file} is in use by another program.", "Close that program, and try again.")
_TOO_LONG = (
    "{file} is too long for Windows: the whole path has {length} characters, of which it allows 259.",
    "Choose a folder with a shorter path, or switch on long paths in Windows (LongPathsEnabled).",
)
_TOO_MANY = ("Too many files are open: {file} could not be opened.", "Close other programs and try again.")
_SENTENCES: Mapping[int, tuple[str, str]] = {
    **dict.fromkeys(_FULL, _FULL_DISK),
    **dict.fromkeys(_DENIED, _NO_ACCESS),
    errno.EROFS: ("{file} is on a disk that can only be read.", "Choose a folder on another disk."),
    errno.ENOENT: ("{file} does not exist.", "Check the path."),
    errno.EISDIR: ("{file} is a folder, not a file.", "Choose a file."),
    errno.EEXIST: ("{file} exists already, so no folder can be made there.", "Choose another folder."),
    errno.ENOTDIR: ("{file} cannot be there: a part of its path is a file, not a folder.", "Choose another folder."),
    errno.EIO: ("{file} could not be read or written: the disk reported an error.", "Check the disk."),
    errno.ENAMETOOLONG: _NO_NAME,
    errno.EILSEQ: _NO_NAME,
    errno.EMFILE: _TOO_MANY,
    errno.ENFILE: _TOO_MANY,
}


# Windows reports these as missing permissions, and a path that is too long as a file that does not exist.
_SHARING_VIOLATIONS = {32, 33}
_NO_SUCH_PATH, _NAME_TOO_LONG, _MAX_PATH_CHARS = 3, 206, 259


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


def is_failure_of_machine(error: BaseException | None) -> bool:
    """Return whether the disk, the memory or the network caused an error: another path would not help."""
    return isinstance(error, UnconfirmedError | ConnectionError | TimeoutError) or (
        isinstance(error, OSError) and error.errno in _OF_MACHINE
    )


def describe_file_error(error: OSError) -> tuple[str, str]:
    """Return a sentence that names the file and what is wrong with it, and an advice."""
    if isinstance(error, UnconfirmedError):
        return (
            f"{_path_of(error)} was written, but the disk did not confirm it ({_reason(error)}).",
            "It may be lost if the power fails now. Check the disk.",
        )
    if error.errno is None:
        return f"A file could not be read or written: {error}.", _CHECK
    if error.errno in _FULL and not error.filename:
        return "The disk is full.", _SENTENCES[error.errno][1]
    what, advice = _on_windows(error) or _SENTENCES.get(
        error.errno, ("{file} could not be read or written: {reason}.", _CHECK)
    )
    if error.errno == errno.EFBIG and error.strerror == os.strerror(errno.EFBIG):  # a reader states its own limit
        what, advice = _NO_SUCH_SIZE
    file = _path_of(error)
    return what.format(file=file, reason=_reason(error), length=len(file)), advice


def _on_windows(error: OSError) -> tuple[str, str] | None:
    """Return the message and the advice for an error that only Windows reports; None for any other."""
    number = getattr(error, "winerror", None)
    if number in _SHARING_VIOLATIONS:
        return _IN_USE
    is_long = len(_path_of(error)) > _MAX_PATH_CHARS
    return _TOO_LONG if number == _NAME_TOO_LONG or (number == _NO_SUCH_PATH and is_long) else None


def plain_reason(error: BaseException, *, names_file: bool = False) -> str:
    """Return why something failed, as the end of a sentence: without Python's names and numbers of errors.

    With `names_file` the file of an error of the file system is named, for a sentence that does not name it.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return describe_file_error(error)[0].rstrip(".") if names_file else _reason(error)
    if isinstance(error, json.JSONDecodeError):
        return f"it is not valid JSON (line {error.lineno})" if error.doc.strip() else "it is empty"
    if isinstance(error, KeyError) and error.args:
        return f"{error.args[0]} is missing"
    lines = str(error).strip().splitlines()
    text = re.sub(_CLASS, "", re.sub(_NUMBER, "", lines[0] if lines else "")).strip().rstrip(".")
    return "the connection failed" if re.search(_CONNECTION, text) else text or "no reason was given"


def _path_of(error: OSError) -> str:
    name = error.filename
    if name is None or isinstance(name, int):
        return "A file"
    return os.fsdecode(name).encode("utf-8", "backslashreplace").decode()  # a name that is not valid UTF-8


def _reason(error: OSError) -> str:
    return error.strerror or (os.strerror(error.errno) if error.errno else str(error))
