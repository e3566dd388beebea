"""A caption file as an editor sees it: text in, the same bytes out, except where the text was changed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from modules.data.captions.sources import text_codec
from modules.system.regular_files import read_regular

_LINE_END = re.compile(r"(\r\n|\r|\n)")
_MAX_BYTES = 10_000_000


@dataclass(frozen=True, slots=True)
class CaptionFile:
    """The content of a caption file: its text with "\\n" between lines, and how it is written.

    `content` is None where there is no file. `ends` are the line ends in the file, one fewer than lines. With
    `is_editable` False the bytes are not valid in the encoding that they seem to have, or contain a NUL character: an
    editor would lose them.
    """

    content: bytes | None
    text: str = ""
    codec: str = "utf-8"
    mark: bytes = b""
    ends: tuple[str, ...] = ()
    is_editable: bool = True


def read_caption_file(path: Path) -> CaptionFile:
    """Return a caption file; one without content if it does not exist. Raises OSError if it cannot be read."""
    try:
        return parse_caption_file(read_regular(path, _MAX_BYTES))
    except FileNotFoundError:
        return CaptionFile(None)


def parse_caption_file(content: bytes) -> CaptionFile:
    """Return the bytes of a caption file as text."""
    codec, mark = text_codec(content)
    try:
        whole = content[len(mark) :].decode(codec)
        is_editable = mark + whole.encode(codec) == content and "\0" not in whole
    except UnicodeError:
        whole, is_editable = content[len(mark) :].decode(codec, errors="replace"), False
    pieces = _LINE_END.split(whole)
    return CaptionFile(content, "\n".join(pieces[::2]), codec, mark, tuple(pieces[1::2]), is_editable)


def with_text(file: CaptionFile, text: str) -> bytes:
    """Return the bytes of a caption file with another text.

    Lines that are still there keep their line ends; others get the one that most lines of the file have. The encoding
    and its mark stay, unless the text does not fit into it: then it is UTF-8. Raises ValueError for a file that is not
    editable.
    """
    if not file.is_editable:
        raise ValueError("not editable")
    if text == file.text and file.content is not None:
        return file.content
    ends = _ends_of(file, text.split("\n"))
    whole = "".join(line + end for line, end in zip(text.split("\n"), [*ends, ""], strict=True))
    try:
        return file.mark + whole.encode(file.codec)
    except UnicodeEncodeError:
        return whole.encode("utf-8")


def _ends_of(file: CaptionFile, lines: list[str]) -> list[str]:
    """Return the line ends of a new text: one fewer than lines."""
    usual = max(dict.fromkeys(file.ends), key=file.ends.count, default="\n")
    old_lines, old_ends = file.text.split("\n"), [*file.ends, usual]
    if len(old_lines) == len(lines):
        return old_ends[:-1]
    ends = [usual] * len(lines)
    for _, old_first, old_last, first, last in SequenceMatcher(None, old_lines, lines, autojunk=False).get_opcodes():
        for offset in range(min(old_last - old_first, last - first)):
            ends[first + offset] = old_ends[old_first + offset]
    return ends[:-1]
