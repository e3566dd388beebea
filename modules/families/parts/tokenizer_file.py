"""Reads the vocabulary in a model's tokenizer folder, `tokenizer.json`: within bounds, and a damaged one is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer

from modules.system.errors import DarkroomError
from modules.system.regular_files import read_regular

MAX_BYTES = 64_000_000  # T5's has 2.4 MB, Qwen3's 11 MB
_PROBE = "".join(map(chr, range(32, 0x250)))  # a text that shows whether a vocabulary can be used


def whole_tokenizer(folder: Path) -> Tokenizer | None:
    """Return the tokenizer in a folder's tokenizer.json, which neither pads nor truncates; None without the file."""
    file = folder / "tokenizer.json"
    return tokenizer_of(file) if file.is_file() else None


def tokenizer_of(file: Path) -> Tokenizer:
    """Return the tokenizer in a file, which neither pads nor truncates."""
    tokenizer = Tokenizer.from_str(read_regular(file, MAX_BYTES).decode("utf-8"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def read_tokenizer(folder: Path | None, read: Callable[[Path], Tokenizer | None] = whole_tokenizer) -> Tokenizer | None:
    """Return the tokenizer that `read` finds in a model's tokenizer folder; None if there is none.

    Raises DarkroomError for a damaged one.
    """
    if folder is None:
        return None
    try:
        tokenizer = read(folder)
        if tokenizer is not None:
            tokenizer.encode(_PROBE)
    except BaseException as error:
        # The library raises a plain Exception for a damaged vocabulary, and panics in a damaged table of characters.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DarkroomError(
            f"The tokenizer in {folder} is damaged: {str(error)[:200]}.", advice="Download the model again."
        ) from error
    return tokenizer
