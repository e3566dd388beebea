"""Reading a GGUF file's header, without torch and without loading its tensors.

The format (github.com/ggml-org/ggml, docs/gguf.md): four letters, a version and two counts, then metadata and the
names, shapes, types and offsets of the tensors, all little-endian; the data follow, aligned. Shapes are stored in
reverse. ComfyUI-GGUF and stable-diffusion.cpp write UNets in it. ComfyUI-GGUF flattens a weight whose rows are no
whole number of blocks, and keeps its shape in the metadata.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO

from modules.formats.headers import MAX_NAME_CHARS, MAX_TENSORS, UnreadableFileError, open_header, over_limit
from modules.system.regular_files import open_regular

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_HEADER_BYTES = 32_000_000
_MAX_VALUES = 500_000  # in all arrays of the metadata together; tokenizers of language models have 150,000
_MAX_PAIRS = 10_000
_MAX_AXES = 8
_ORIGINAL_SHAPE = "comfy.gguf.orig_shape."
_AGAIN = "Download it again."


@dataclass(frozen=True, slots=True)
class BlockType:
    """How the weights of a tensor are stored: `block` of them in `num_bytes` bytes."""

    name: str
    block: int
    num_bytes: int

    @property
    def is_packed(self) -> bool:
        """Whether it is a quantized type; the others are dtypes of torch."""
        return self.block > 1


READABLE = frozenset(
    {
        *("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8"),
        *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"),
    }
)
"""The names of the types that `gguf_tensors` reads."""

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor's type, its shape, and the byte range of its data in the file."""

    type: BlockType
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The tensors of a file by name, and its metadata as texts."""

    tensors: Mapping[str, GgufTensor]
    metadata: Mapping[str, str]

    @property
    def unreadable(self) -> tuple[str, ...]:
        """The names of the types in the file that cannot be read."""
        return tuple(sorted({t.type.name for t in self.tensors.values()} - READABLE))


def is_gguf(path: Path) -> bool:
    """Return whether a path leads to a GGUF file, by the file's first letters."""
    try:
        with open_regular(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


def read_gguf_header(path: Path) -> GgufHeader:
    """Return a GGUF file's header. Raises UnreadableFileError for any other file, or a damaged one."""
    with open_header(path) as (file, size):
        return _Reader(path, file, size).header()


@cache
def block_type(number: int) -> BlockType | None:
    """Return a type of ggml by its number, None for an unknown one."""
    # Imported here: the import takes half a second, and few users open such a file.
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    if number not in {kind.value for kind in GGML_QUANT_SIZES}:
        return None
    kind = GGMLQuantizationType(number)
    return BlockType(kind.name, *GGML_QUANT_SIZES[kind])


class _Reader:
    """Reads a header value by value; each read is within the file and within the limits."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self._path, self._file, self._size = path, file, size
        self._position = 0
        self._values_left = _MAX_VALUES

    def header(self) -> GgufHeader:
        """Return the header."""
        if self._bytes(4) != MAGIC:
            raise UnreadableFileError("damaged", f"{self._path.name} is not a GGUF file.")
        version = self._number("I")
        if version not in _VERSIONS:
            raise self._damage_error(f"its version is {version}, not 2 or 3")
        num_tensors, num_pairs = self._number("Q"), self._number("Q")
        if num_tensors > MAX_TENSORS or num_pairs > _MAX_PAIRS:
            raise over_limit(self._path, f"its header describes {num_tensors:,} tensors and {num_pairs:,} settings")
        metadata: dict[str, str] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for _ in range(num_pairs):
            key = self._text(MAX_NAME_CHARS)
            value = self._value(self._number("I"))
            if key.startswith(_ORIGINAL_SHAPE):
                shapes[key.removeprefix(_ORIGINAL_SHAPE)] = self._shape(value)
            elif not isinstance(value, tuple):
                metadata[key] = str(value)
        entries = [self._entry() for _ in range(num_tensors)]
        start = self._aligned_position(metadata.get("general.alignment", "32"))
        tensors = {name: self._tensor(start + o, s, kind, shapes.get(name)) for name, s, kind, o in entries}
        if len(tensors) < len(entries):
            raise self._damage_error("it has two tensors of the same name")
        return GgufHeader(tensors, metadata)

    def _entry(self) -> tuple[str, tuple[int, ...], BlockType, int]:
        name = self._text(MAX_NAME_CHARS)
        num_axes = self._number("I")
        if num_axes > _MAX_AXES:
            raise self._damage_error(f"{name[:80]!r} has {num_axes} axes")
        shape = tuple(self._number("Q") for _ in range(num_axes))[::-1]
        number, offset = self._number("I"), self._number("Q")
        kind = block_type(number)
        if kind is None:
            raise UnreadableFileError(
                "damaged", f"{self._path.name} contains a type of weights that is not known ({number})."
            )
        return name, shape, kind, offset

    def _tensor(
        self, begins: int, stored: tuple[int, ...], kind: BlockType, original: tuple[int, ...] | None
    ) -> GgufTensor:
        num_weights = math.prod(stored)
        if num_weights % kind.block or (original is not None and math.prod(original) != num_weights):
            raise self._damage_error("the shape of a tensor does not fit its data")
        ends = begins + num_weights // kind.block * kind.num_bytes
        if ends > self._size:
            raise UnreadableFileError(
                "truncated",
                f"{self._path.name} is incomplete: it has {self._size:,} of at least {ends:,} bytes, like an "
                "interrupted download.",
                advice=_AGAIN,
            )
        return GgufTensor(kind, stored if original is None else original, begins, ends)

    def _value(self, kind: int) -> object:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _STRING:
            return self._text(_MAX_HEADER_BYTES)
        if kind != _ARRAY:
            raise self._damage_error("its metadata has a value of an unknown type")
        inner, length = self._number("I"), self._number("Q")
        self._values_left -= min(length, _MAX_VALUES + 1)
        if self._values_left < 0:
            raise over_limit(self._path, f"its metadata contain more than {_MAX_VALUES:,} values")
        if inner == _ARRAY:
            raise self._damage_error("its metadata have an array of arrays")
        return tuple(self._value(inner) for _ in range(length))

    def _shape(self, value: object) -> tuple[int, ...]:
        if not isinstance(value, tuple) or len(value) > _MAX_AXES or any(type(n) is not int or n < 0 for n in value):
            raise self._damage_error("the shape of a tensor in its metadata is invalid")
        return value

    def _aligned_position(self, alignment: str) -> int:
        step = int(alignment) if alignment.isdecimal() and len(alignment) < 8 else 0
        if not step:
            raise self._damage_error("its alignment is not a number")
        return -(-self._position // step) * step

    def _number(self, code: str) -> int:
        value: int = struct.unpack(f"<{code}", self._bytes(struct.calcsize(f"<{code}")))[0]
        return value

    def _text(self, most: int) -> str:
        length = self._number("Q")
        if length > most:
            raise over_limit(self._path, f"a text in its header has {length:,} bytes")
        return self._bytes(length).decode("utf-8", "replace")

    def _bytes(self, length: int) -> bytes:
        self._position += length
        if self._position > _MAX_HEADER_BYTES:
            raise over_limit(self._path, f"its header has more than {_MAX_HEADER_BYTES:,} bytes")
        content = self._file.read(length)
        if len(content) < length:
            raise UnreadableFileError("truncated", f"{self._path.name} is incomplete: it ends in its header.")
        return content

    def _damage_error(self, what: str) -> UnreadableFileError:
        return UnreadableFileError("damaged", f"{self._path.name} is damaged: {what}.", advice=_AGAIN)
