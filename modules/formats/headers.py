"""Reading a safetensors file's header, without torch and without loading its tensors.

The format (github.com/huggingface/safetensors): eight bytes with the header's length, the header as JSON, then the
tensors' bytes. Some files only carry the .safetensors suffix; each known kind of wrong file gets its own message.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from modules.system.errors import DarkroomError
from modules.system.regular_files import open_regular, read_regular

Defect = Literal["missing", "empty", "html", "lfs", "pickled", "truncated", "damaged", "limit", "unsafe", "gguf"]

ITEM_BYTES = {
    **{"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1},
    **{"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1},
}
MAX_TENSORS = 30_000
"""In one file: three times as many as SDXL has with its EMA weights and the state of an optimizer."""
MAX_NAME_CHARS = 1_000
"""Of a tensor's name."""
_MAX_HEADER_BYTES = 32_000_000  # an image or the tags of a large data set in the metadata take a few
_MAX_ELEMENTS = 500_000  # objects, lists and their members in a header: 10 for a tensor, 1 for a line of metadata
_MAX_AXES = 64
_INT64 = 2**63
_AGAIN = "Download it again."
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
# Characters, or their escapes, that need four bytes, and the ones that need two or four.
_EMOJI = re.compile(rb"[\xf0-\xf4]|(?<!\\)(?:\\\\)*\\u[dD][89abAB]")
_WIDE = re.compile(rb"[\xc4-\xf4]|(?<!\\)(?:\\\\)*\\u(?!00)")
_CONTINUATION = bytes(range(0x80, 0xC0))  # all bytes of a character but the first
_LONE = re.compile("[\ud800-\udfff]")
_PICKLES = (b"PK\x03\x04", *(b"\x80" + bytes([protocol]) for protocol in range(6)))


class UnreadableFileError(DarkroomError):
    """A file that is not a valid model file; `defect` names what is wrong with it."""

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
    with open_header(path) as (file, size):
        return _read(path, file, size)


@contextmanager
def open_header(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a file, and give it with its size. Raises UnreadableFileError if it cannot be read, also later on."""
    try:
        with open_regular(path) as file:
            yield file, os.fstat(file.fileno()).st_size
    except FileNotFoundError as error:
        raise UnreadableFileError("missing", f"There is no file {path}.") from error
    except (OSError, ValueError) as error:  # a null character in the name is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise UnreadableFileError("missing", f"{path} cannot be read: {reason}.") from error


def over_limit(path: Path, what: str) -> UnreadableFileError:
    """Return the error for a file that is larger than a reader accepts; `what` is a clause: "it contains ..."."""
    return UnreadableFileError(
        "limit",
        f"{path.name} was not read: {what}, which is far more than any real model has.",
        advice="It may have been made to exhaust programs. Get the model from another place.",
    )


def _read(path: Path, file: BinaryIO, size: int) -> Header:
    beginning = file.read(512)
    _refuse_other_formats(path, beginning, size)
    length = int.from_bytes(beginning[:8], "little")
    if size < 8 or beginning[8:9] not in (b"{", b"[", b"") or length >= 2**40:
        advice = "Choose another file; if it was a safetensors file, download it again."
        raise UnreadableFileError("damaged", f"{path.name} is not a safetensors file.", advice=advice)
    if 8 + length > size:
        raise _truncation_error(path, size, 8 + length)
    if length > _MAX_HEADER_BYTES:
        raise over_limit(path, f"its header has {length:,} bytes, more than {_MAX_HEADER_BYTES:,}")
    file.seek(8)
    data = _parse(path, file.read(length))
    entries = [(name, value) for name, value in data.items() if name != "__metadata__"]
    if len(entries) > MAX_TENSORS:
        raise over_limit(path, f"its header describes {len(entries):,} tensors, more than {MAX_TENSORS:,}")
    if any(len(name) > MAX_NAME_CHARS for name, _ in entries):
        raise over_limit(path, f"the name of a tensor has more than {MAX_NAME_CHARS:,} characters")
    tensors = {_whole(name): _entry(path, name, value, 8 + length) for name, value in entries}
    _require_contiguous(path, tensors.values(), 8 + length, size)
    return Header(tensors, _metadata(path, data.get("__metadata__")))


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    """Return the JSON object in a header, if it takes a bearable time and memory."""
    if (needed := _num_bytes_in_memory(raw)) > _MAX_HEADER_BYTES:
        raise over_limit(path, f"its header takes {needed:,} bytes of memory, more than {_MAX_HEADER_BYTES:,}")
    if _has_more_elements(raw, _MAX_ELEMENTS):
        raise over_limit(path, f"its header contains more than {_MAX_ELEMENTS:,} values")
    try:
        text = raw.decode()
        del raw  # one copy less in memory while the text is parsed
        data = json.loads(text, parse_int=_number)
    except (ValueError, RecursionError) as error:
        raise UnreadableFileError(
            "damaged", f"{path.name} is not a safetensors file: its header cannot be read.", advice=_AGAIN
        ) from error
    if not isinstance(data, dict):
        raise UnreadableFileError(
            "damaged", f"{path.name} is not a safetensors file: its header is not a list of tensors."
        )
    return data


def _num_bytes_in_memory(raw: bytes) -> int:
    """Return how much memory the text of a header takes at most.

    Python stores each character of a text in as many bytes as its widest needs: a single emoji makes it four.
    """
    if len(raw) <= _MAX_HEADER_BYTES // 4 or (raw.isascii() and b"\\u" not in raw):
        return len(raw)
    width = 1 if _WIDE.search(raw) is None else 2 if _EMOJI.search(raw) is None else 4
    return width * len(raw.translate(None, _CONTINUATION))


def _number(digits: str) -> int:
    """Return a whole number; one that is too long for a size is -1, since converting it takes long."""
    return int(digits) if len(digits) < 20 else -1


def _has_more_elements(raw: bytes, limit: int) -> bool:
    """Return whether JSON contains more objects, lists and members than `limit`, without parsing it."""
    if _num_marks(raw, 0, len(raw)) <= limit:
        return False
    if raw.count(b'"') - raw.count(b'\\"') > 4 * limit:
        return True
    # Commas and brackets inside texts, such as the tags of a data set, do not count.
    count, end = 0, 0
    for match in _TEXT.finditer(raw):
        count += 1 + _num_marks(raw, end, match.start())
        end = match.end()
        if count > 2 * limit:
            return True
    return count + _num_marks(raw, end, len(raw)) > 2 * limit


def _num_marks(raw: bytes, start: int, end: int) -> int:
    return sum(raw.count(mark, start, end) for mark in (b",", b"[", b"{"))


def _require_contiguous(path: Path, tensors: Iterable[TensorEntry], start: int, size: int) -> None:
    """Raise UnreadableFileError unless the tensors fill the file without gaps and overlaps, as the format requires."""
    position = start
    for begins, ends in sorted((t.start, t.end) for t in tensors):
        if begins < position:
            raise _misplaced_error(path, "tensors overlap")
        if begins > position:
            raise _misplaced_error(path, "there are bytes between its tensors that belong to none")
        position = ends
    if position > size:
        raise _truncation_error(path, size, position)
    if position < size:
        raise _misplaced_error(path, f"{size - position:,} bytes follow after its last tensor")


def _misplaced_error(path: Path, what: str) -> UnreadableFileError:
    return UnreadableFileError("damaged", f"{path.name} is damaged, and no program loads it: {what}.", advice=_AGAIN)


def _refuse_other_formats(path: Path, beginning: bytes, size: int) -> None:
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
    if beginning.startswith(b"GGUF"):  # as the length of a header it would be over a gigabyte
        raise UnreadableFileError("gguf", f"{path.name} is a GGUF file, not a safetensors file.")
    # A safetensors length can coincide with the first bytes of a pickle; then the header still starts with a brace.
    if beginning[8:9] != b"{" and beginning.startswith(_PICKLES):
        raise UnreadableFileError("pickled", f"{path.name} is a pickled checkpoint with a .safetensors suffix.")


def _truncation_error(path: Path, size: int, needed: int) -> UnreadableFileError:
    return UnreadableFileError(
        "truncated",
        f"{path.name} is incomplete: it has {size:,} of at least {needed:,} bytes, like an interrupted download.",
        advice=_AGAIN,
    )


def _entry(path: Path, name: str, value: Any, data_start: int) -> TensorEntry:
    try:
        dtype, shape, (start, end) = value["dtype"], value["shape"], value["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise _wrong_entry(path, name) from error
    if not isinstance(dtype, str) or not isinstance(shape, list) or len(shape) > _MAX_AXES:
        raise _wrong_entry(path, name)
    if any(type(n) is not int or not 0 <= n < _INT64 for n in (start, end, *shape)):
        raise _wrong_entry(path, name)
    num_bytes = ITEM_BYTES.get(dtype, 0)
    for n in shape:
        num_bytes *= n
    if end < start or (dtype in ITEM_BYTES and num_bytes != end - start):
        raise _wrong_entry(path, name)
    return TensorEntry(dtype, tuple(shape), data_start + start, data_start + end)


def _wrong_entry(path: Path, name: str) -> UnreadableFileError:
    return UnreadableFileError(
        "damaged", f"{path.name} is damaged: its header describes {name[:80]!r} incorrectly.", advice=_AGAIN
    )


def _metadata(path: Path, value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise UnreadableFileError(
            "damaged",
            f"{path.name} is damaged, and no program loads it: its metadata contains something else than texts.",
            advice="Save it again with the program that made it.",
        )
    return {_whole(k): _whole(v) for k, v in value.items()}


def _whole(text: str) -> str:
    """Return a text with its lone surrogates replaced: they are valid in JSON, but not in UTF-8."""
    if text.isascii() or _LONE.search(text) is None:
        return text
    return text.encode("utf-8", "replace").decode()


# The files of weights that are in several, by their index (`*.safetensors.index.json`, as transformers writes it).
_MAX_INDEX_BYTES = 16_000_000
_MAX_FILES = 1_000
_MAX_NAME_BYTES = 255  # of a file's name, in most file systems


def is_index(path: Path) -> bool:
    """Return whether a path is the path of an index, by its name."""
    return path.name.endswith(".index.json")


def shards_of(index: Path) -> list[Path]:
    """Return the files that an index names, which are next to it, in order.

    Raises UnreadableFileError where it cannot be read, or names anything but files next to it.
    """
    try:
        names = set(json.loads(read_regular(index, _MAX_INDEX_BYTES))["weight_map"].values())
        if not all(isinstance(n, str) and _is_name(n) for n in names):
            raise ValueError("it names other things than .safetensors files next to it")
    except FileNotFoundError as error:
        raise UnreadableFileError("missing", f"There is no file {index}.") from error
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        message = f"{index.name} is not an index of weight files: {str(error)[:200]}."
        raise UnreadableFileError("damaged", message, advice="Download it again.") from error
    if not 0 < len(names) <= _MAX_FILES:
        raise UnreadableFileError("damaged", f"{index.name} names {len(names):,} files.", advice="Download it again.")
    files = [index.parent / name for name in sorted(names)]
    if missing := [file.name for file in files if not file.is_file()]:
        message = f"{index.name} names {missing[0]}, which is not next to it."
        raise UnreadableFileError("missing", message, advice="Download the missing file, or all of them again.")
    return files


def _is_name(name: str) -> bool:
    is_short = len(name.encode("utf-8", "replace")) <= _MAX_NAME_BYTES
    return is_short and name == Path(name).name and name.endswith(".safetensors") and "\0" not in name
