"""Reading a safetensors file's header, without torch and without loading its tensors.

The format (github.com/huggingface/safetensors): eight bytes with the header's length, the header as JSON, then the
tensors' bytes. Some files only carry the .safetensors suffix; each known kind of wrong file gets its own message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from modules.system.errors import DarkroomError

Defect = Literal["missing", "empty", "html", "lfs", "pickled", "truncated", "damaged"]

ITEM_BYTES = {
    **{"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1},
    **{"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1},
}
_MAX_HEADER_BYTES = 100_000_000  # the library's own limit
_AGAIN = "Download it again."


class UnreadableFileError(DarkroomError):
    """A file that is not a valid safetensors file; `defect` names what is wrong with it."""

    def __init__(self, defect: Defect, message: str, *, advice: str = "") -> None:
        super().__init__(message, advice=advice)
        self.defect: Defect = defect


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor's dtype code, its shape, and the byte range of its data in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """The tensors of a file by name, and its metadata."""

    tensors: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]


def read_header(path: Path) -> Header:
    """Return a safetensors file's header. Raises UnreadableFileError for any other file."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            return _read(path, file, size)
    except FileNotFoundError as error:
        raise UnreadableFileError("missing", f"There is no file {path}.") from error
    except (OSError, ValueError) as error:  # a null character in the name is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise UnreadableFileError("missing", f"{path} cannot be read: {reason}.") from error


def _read(path: Path, file: BinaryIO, size: int) -> Header:
    beginning = file.read(512)
    _refuse_strangers(path, beginning, size)
    length = int.from_bytes(beginning[:8], "little")
    if size < 8 or length > _MAX_HEADER_BYTES:
        advice = "Choose another file; if it was a safetensors file, download it again."
        raise UnreadableFileError("damaged", f"{path.name} is not a safetensors file.", advice=advice)
    if 8 + length > size:
        raise _truncated(path, size, 8 + length)
    file.seek(8)
    try:
        data = json.loads(file.read(length))
    except (ValueError, RecursionError) as error:
        raise UnreadableFileError(
            "damaged", f"{path.name} is not a safetensors file: its header cannot be read.", advice=_AGAIN
        ) from error
    if not isinstance(data, dict):
        raise UnreadableFileError(
            "damaged", f"{path.name} is not a safetensors file: its header is not a list of tensors."
        )
    tensors = {name: _entry(path, name, value, 8 + length) for name, value in data.items() if name != "__metadata__"}
    needed = max((t.end for t in tensors.values()), default=8 + length)
    if needed > size:
        raise _truncated(path, size, needed)
    return Header(tensors, _metadata(data.get("__metadata__")))


def _refuse_strangers(path: Path, beginning: bytes, size: int) -> None:
    text = beginning.lstrip().lower()
    if size == 0:
        raise UnreadableFileError("empty", f"{path.name} is empty.", advice=_AGAIN)
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        raise UnreadableFileError(
            "html",
            f"{path.name} is a web page, not a model: the download saved the page instead of the file.",
            advice="Open the page in a browser, log in if required, and download the file itself.",
        )
    if beginning.startswith(b"version https://git-lfs"):
        raise UnreadableFileError(
            "lfs",
            f"{path.name} is a git-lfs pointer, not the model itself.",
            advice="Run `git lfs pull` in its repository, or download the file itself.",
        )
    # A safetensors length can coincide with the first bytes of a pickle; then the header still starts with a brace.
    if beginning[8:9] != b"{" and beginning.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04")):
        raise UnreadableFileError("pickled", f"{path.name} is a pickled checkpoint with a .safetensors suffix.")


def _truncated(path: Path, size: int, needed: int) -> UnreadableFileError:
    return UnreadableFileError(
        "truncated",
        f"{path.name} is incomplete: it has {size:,} of at least {needed:,} bytes, like an interrupted download.",
        advice=_AGAIN,
    )


def _entry(path: Path, name: str, value: Any, data_start: int) -> TensorEntry:
    try:
        dtype, shape = str(value["dtype"]), tuple(int(n) for n in value["shape"])
        start, end = (int(n) for n in value["data_offsets"])
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise _wrong_entry(path, name) from error
    num_bytes = ITEM_BYTES.get(dtype, 0)
    for n in shape:
        num_bytes *= n
    if start < 0 or end < start or min(shape, default=0) < 0 or (dtype in ITEM_BYTES and num_bytes != end - start):
        raise _wrong_entry(path, name)
    return TensorEntry(dtype, shape, data_start + start, data_start + end)


def _wrong_entry(path: Path, name: str) -> UnreadableFileError:
    return UnreadableFileError(
        "damaged", f"{path.name} is damaged: its header describes {name[:80]!r} incorrectly.", advice=_AGAIN
    )


def _metadata(value: Any) -> dict[str, str]:
    """Return the metadata as texts; lone surrogates, valid in JSON but not in UTF-8, are replaced."""
    if not isinstance(value, dict):
        return {}
    return {_whole(str(k)): _whole(str(v)) for k, v in value.items()}


def _whole(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
