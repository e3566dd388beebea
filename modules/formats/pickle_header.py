"""Reads the contents of a pickled checkpoint (.ckpt, .pt) without running any of its code.

Two formats: a zip archive with the pickle as `data.pkl`, and, before PyTorch 1.6, five pickles in a row: a magic
number, the version, the system info, the object, the names of its storages. Loading runs all five. The
weights themselves are read elsewhere, by torch with weights_only.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from modules.formats.headers import MAX_NAME_CHARS, MAX_TENSORS, UnreadableFileError, over_limit
from modules.formats.pickle_machine import PickleLimitError, PickleMachine
from modules.formats.pickle_values import PickledTensor, is_safe_name
from modules.system.problem import list_first
from modules.system.regular_files import open_regular

_MAX_PICKLE_BYTES = 16_000_000  # the pickle of an SDXL checkpoint has 0.5 MB
_MAX_DIRECTORY_BYTES = 4_000_000  # of a zip archive; about 80 bytes for each of its members
_MAX_DEPTH = 6
_MAX_VALUES = 100_000
# The exceptions that the zip and pickle readers raise for damaged and hostile files.
_DAMAGE = (
    *(OSError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError),
    *(RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error),
)
_MAGIC = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the number that files of torch before 1.6 begin with, and STOP
_ZIP = b"PK\x03\x04"
_NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class PickleHeader:
    """The tensors and plain values of a pickle by dotted name, and the functions and classes it names."""

    tensors: dict[str, PickledTensor]
    values: dict[str, object]
    names: frozenset[str]


def read_pickle_header(path: Path) -> PickleHeader:
    """Return the contents of a pickled checkpoint.

    Raises UnreadableFileError if it cannot be interpreted: it is damaged, larger than any real checkpoint, or not
    one of PyTorch. The defect is "unsafe" where what was read names code; programs run it before they find the damage.
    """
    try:
        with open_regular(path) as file:
            return pickle_header_of(file, path)
    except OSError as error:
        raise _incomplete(path) from error


def pickle_header_of(file: BinaryIO, path: Path) -> PickleHeader:
    """Return the contents of an open pickled checkpoint, as `read_pickle_header` does; `path` is named in errors."""
    names: set[str] = set()
    try:
        return _header(_root(file, names), names)
    except PickleLimitError as error:
        raise _unsafe(path, names) or over_limit(path, f"it contains {error}") from error
    except _DAMAGE as error:
        raise _unsafe(path, names) or _incomplete(path) from error


def unsafe_names_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names in a pickle that could run code, sorted."""
    return tuple(sorted(n for n in names if not is_safe_name(n)))


def unsafe_sentence(name: str, unsafe: tuple[str, ...]) -> str:
    """Return the sentence about a file whose pickle names code."""
    shown = list_first([n[:80] for n in unsafe], _NAMES_SHOWN)
    return f"{name} is not safe to load: it would call or create {shown}, which is not part of any weights."


def is_zip(file: BinaryIO) -> bool:
    """Return whether torch would read an open file as a zip archive: it only looks at the beginning."""
    file.seek(0)
    return file.read(len(_ZIP)) == _ZIP


def open_limited_zip(file: BinaryIO) -> zipfile.ZipFile:
    """Open a zip archive. Raises PickleLimitError if it has too many members to list."""
    reads = _LimitedReads(file)
    archive = zipfile.ZipFile(cast("Any", reads))
    reads.is_listing = False
    return archive


class _LimitedReads:
    """A file for zipfile, which reads and lists a directory of any size at once."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.is_listing = file, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, count: int = -1) -> bytes:
        """Return the next bytes. Raises PickleLimitError for a directory that is too large."""
        if not self.is_listing:
            return self._file.read(count)
        content = self._file.read(_MAX_DIRECTORY_BYTES + 1 if count < 0 else min(count, _MAX_DIRECTORY_BYTES + 1))
        if len(content) > _MAX_DIRECTORY_BYTES:
            raise PickleLimitError("more files than can be listed")
        return content


def _root(file: BinaryIO, names: set[str]) -> Any:
    """Return the object in a checkpoint; `names` receives the names in its pickles, even if one is damaged."""
    if is_zip(file):
        with open_limited_zip(file) as archive:
            return PickleMachine(_pickle_of(archive, names), names=names).run()
    file.seek(0)
    data = file.read(_MAX_PICKLE_BYTES + 1)
    machine = PickleMachine(data[:_MAX_PICKLE_BYTES], names=names)
    try:
        machine.run()
        if not data[: machine.position].endswith(_MAGIC):
            raise ValueError("a pickle, but not a checkpoint")
        _, _, root, _ = (machine.run() for _ in range(4))
    except (ValueError, IndexError) as error:
        if len(data) > _MAX_PICKLE_BYTES and machine.position > _MAX_PICKLE_BYTES // 2:
            raise PickleLimitError(f"a pickle of more than {_MAX_PICKLE_BYTES:,} bytes") from error
        raise
    return root


def _pickle_of(archive: zipfile.ZipFile, names: set[str]) -> bytes:
    by_name = [(e.filename.lower().rpartition("/")[2], e) for e in archive.infolist()]
    if any(name == "constants.pkl" for name, _ in by_name):
        names.add("a TorchScript program")
    entries = [e for name, e in by_name if name == "data.pkl"]
    if len(entries) != 1:  # of several, every program may choose another
        raise ValueError("not one data.pkl")
    if entries[0].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("a compression that torch does not support")
    with archive.open(entries[0]) as file:
        data = file.read(_MAX_PICKLE_BYTES + 1)
    if len(data) > _MAX_PICKLE_BYTES:
        raise PickleLimitError(f"a pickle of more than {_MAX_PICKLE_BYTES:,} bytes")
    return data


def _header(root: Any, names: set[str]) -> PickleHeader:
    tensors: dict[str, PickledTensor] = {}
    values: dict[str, object] = {}
    for count, (name, value) in enumerate(_flatten(root, "", 0)):
        if count >= _MAX_VALUES:
            raise PickleLimitError(f"more than {_MAX_VALUES:,} values")
        if isinstance(value, PickledTensor):
            tensors[name] = value
        elif isinstance(value, str | int | float | bool):
            values[name] = value
    if len(tensors) > MAX_TENSORS:
        raise PickleLimitError(f"more than {MAX_TENSORS:,} tensors")
    return PickleHeader(tensors, values, frozenset(names))


def _flatten(value: Any, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested dictionaries with their dotted names, without a "state_dict" prefix.

    A dictionary counts as a value, too: the same empty one can be at very many places.
    """
    if len(name) > MAX_NAME_CHARS:
        raise PickleLimitError(f"a name of more than {MAX_NAME_CHARS:,} characters")
    yield name, value
    if isinstance(value, dict) and depth < _MAX_DEPTH:
        for key, inner in value.items():
            prefix = name if key == "state_dict" else f"{name}.{key}" if name else key
            yield from _flatten(inner, prefix, depth + 1)
    elif isinstance(value, list | tuple) and depth == 1 and name.isdecimal():  # a pair of modules of a hypernetwork
        for number, inner in enumerate(value):
            yield from _flatten(inner, f"{name}.{number}", depth + 1)


def _incomplete(path: Path) -> UnreadableFileError:
    return UnreadableFileError("damaged", f"{path.name} is not a complete checkpoint.", advice="Download it again.")


def _unsafe(path: Path, names: set[str]) -> UnreadableFileError | None:
    unsafe = unsafe_names_of(names)
    if not unsafe:
        return None
    message = unsafe_sentence(path.name, unsafe) + " It is also damaged or not a checkpoint."
    return UnreadableFileError("unsafe", message, advice="Do not open it in any program; get it as .safetensors.")
