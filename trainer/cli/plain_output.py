"""Output without control characters: names of files and texts in them could change the terminal, or what it shows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

_LEFT = "\n\t"
_DIRECTION = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_SURROGATES = range(0xD800, 0xE000)  # bytes of file names that are not valid UTF-8; no stream could write them
_CONTROLS = (*range(0x20), *range(0x7F, 0xA0), *map(ord, _DIRECTION), *_SURROGATES)
_ESCAPES = {code: f"\\u{code:04x}" for code in _CONTROLS if chr(code) not in f"{_LEFT}\r"}  # as in JSON, which stays so


def plain(text: str) -> str:
    """Return a text with control characters, changes of the writing direction and invalid bytes as escapes.

    Line breaks and tabs stay, and so does a carriage return at either end or before a line break: progress bars write
    them, and inside a text they would hide what is before them.
    """
    text = text.translate(_ESCAPES)
    if "\r" not in text:
        return text
    body = text.strip("\r")
    begin, end = text[: len(text) - len(text.lstrip("\r"))], text[len(text.rstrip("\r")) :]
    inner = body.replace("\r\n", "\n").replace("\r", "\\u000d")
    return f"{begin}{inner}{end}" if body else text


class PlainStream:
    """A text stream that writes `plain` texts; everything else is that of the stream below it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text and return its length."""
        self._stream.write(plain(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def plain_output() -> Iterator[None]:
    """Let everything that is printed meanwhile go through `plain`: the verbs, progress bars, warnings and logs."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", PlainStream(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
