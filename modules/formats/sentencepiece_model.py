"""Reads the vocabulary of a sentencepiece model, `spiece.model`: a protobuf message (`sentencepiece_model.proto`).

Only three things of it are needed: the pieces with their scores, what they are, and the table that normalizes text.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from modules.system.regular_files import read_regular

_MAX_BYTES = 32_000_000  # T5's has 792 kB, the largest published ones 5 MB
_MAX_PIECES = 1_000_000
_UNIGRAM = 1  # `TrainerSpec.ModelType`
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5  # the wire types
_MAX_VARINT_BYTES = 10

Field = tuple[int, int | bytes]


@dataclass(frozen=True, slots=True)
class SentencePieces:
    """The pieces of a unigram model with their scores (log-probabilities), in the order of their ids.

    `normalization` is the precompiled table of characters that are replaced; empty for none.
    """

    pieces: tuple[tuple[str, float], ...]
    normalization: bytes


def read_sentence_pieces(path: Path) -> SentencePieces:
    """Return the vocabulary of a sentencepiece model. Raises OSError, or ValueError for a file that is not one."""
    pieces: list[tuple[str, float]] = []
    normalization, model_type = b"", _UNIGRAM
    for number, value in _fields(read_regular(path, _MAX_BYTES)):
        if number == 1 and isinstance(value, bytes):
            pieces.append(_piece(value))
            if len(pieces) > _MAX_PIECES:
                raise ValueError(f"more than {_MAX_PIECES:,} pieces")
        elif number == 2 and isinstance(value, bytes):
            model_type = next((v for n, v in _fields(value) if n == 3 and isinstance(v, int)), _UNIGRAM)
        elif number == 3 and isinstance(value, bytes):
            normalization = next((v for n, v in _fields(value) if n == 2 and isinstance(v, bytes)), b"")
    if model_type != _UNIGRAM:
        raise ValueError("not a unigram model")
    if not pieces:
        raise ValueError("no pieces")
    return SentencePieces(tuple(pieces), normalization)


def _piece(message: bytes) -> tuple[str, float]:
    text, score = "", 0.0
    for number, value in _fields(message):
        if number == 1 and isinstance(value, bytes):
            text = value.decode("utf-8")
        elif number == 2 and isinstance(value, bytes) and len(value) == 4:
            [score] = struct.unpack("<f", value)
    return text, score


def _fields(message: bytes) -> Iterator[Field]:
    """Yield the fields of a message: the number, and the value, bytes unless it is a varint."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        wire = tag & 7
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        size = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(wire, -1)
        if wire == _BYTES:
            size, at = _varint(message, at)
        if size < 0 or at + size > len(message):
            raise ValueError("a field of a wrong type or length")
        yield tag >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return a number of seven bits per byte, the low ones first, and the place behind it."""
    value = 0
    for index, byte in enumerate(message[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise ValueError("a number without an end")
