"""The caption texts of an image, with their problems, and the placeholders of trained embeddings in them."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from modules.data.links import leads_out

# The placeholders of embeddings in captions and prompts.
#
# A placeholder is matched as a whole word and in any case: CLIP's tokenizer does not distinguish case either, and
# captions may be randomly capitalized.


def contains_any(text: str, placeholders: Collection[str]) -> bool:
    """Return whether a text contains one of the placeholders."""
    return bool(placeholders) and _pattern(tuple(placeholders)).search(text) is not None


def split_at_placeholders(text: str, placeholders: Collection[str]) -> Iterator[tuple[str, str | None]]:
    """Yield a text's pieces in order: (its text, None) between placeholders, and (as written, placeholder) for one."""
    if not placeholders:
        yield text, None
        return
    by_key = {p.lower(): p for p in placeholders}
    place = 0
    for match in _pattern(tuple(placeholders)).finditer(text):
        if match.start() > place:
            yield text[place : match.start()], None
        yield match[0], by_key[match[0].lower()]
        place = match.end()
    if place < len(text):
        yield text[place:], None


@lru_cache(maxsize=32)
def _pattern(placeholders: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern for any of the placeholders; where two begin at the same place, the longer one."""
    ordered = sorted(placeholders, key=len, reverse=True)
    return re.compile("|".join(map(_as_word, ordered)), re.IGNORECASE)


def _as_word(placeholder: str) -> str:
    """Return the pattern of one placeholder: letters next to it would make it part of another word."""
    before = r"(?<!\w)" if re.match(r"\w", placeholder) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", placeholder) else ""
    return f"{before}{re.escape(placeholder)}{after}"


_LINE_END = re.compile(r"\r\n|\r|\n")
_MAX_BYTES = 10_000_000  # of a text file; its captions have a few hundred

CaptionSource = Literal["text_file", "file_name", "one_file", "metadata", "fixed_text"]
CaptionFault = Literal["", "missing", "empty", "link", "utf-16", "cp1252", "latin-1"]
"""Why a caption needs attention: it is missing, its file is a link out of the concept's folder, or not UTF-8 and was
read in this encoding."""


@dataclass(frozen=True, slots=True)
class CaptionTexts:
    """The texts of an image, the file they are from if it is one, and what is wrong with it."""

    texts: tuple[str, ...]
    fault: CaptionFault = ""
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class CaptionOrigin:
    """The origin of the captions of a concept.

    With the source "text_file" they are in a file next to the image, with the image's name and `extension`; an image
    without one has the lines of `fixed_text`. With "one_file" they are the texts of `file`, the same for every image;
    with "fixed_text" the lines of `fixed_text`. With "metadata" they are in some `columns` of the metadata file `file`,
    or of the metadata files in the folder of the images (`modules/data/metadata.py`); no columns are the usual ones.
    """

    source: CaptionSource = "text_file"
    file: Path | None = None
    extension: str = ".txt"
    fixed_text: str = ""
    columns: tuple[str, ...] = ()

    @property
    def default_captions(self) -> tuple[str, ...]:
        """The captions of an image without a text file, if any is expected."""
        return _lines(self.fixed_text) if self.source == "text_file" else ()


def read_captions(image: Path, origin: CaptionOrigin, *, within: Path | None = None) -> CaptionTexts:
    """Return the captions of an image; without any, no texts.

    A file next to the image that is a link out of `within`, by default the image's folder, is not read.

    A text file holds one caption per line; blank lines do not count. Text that is not UTF-8 is read as UTF-16 if it
    starts with a byte order mark, else as Windows-1252 or Latin-1, the encodings of older tag editors.
    """
    if origin.source == "fixed_text":
        return _without_a_file(_lines(origin.fixed_text))
    if origin.source == "file_name":
        name = decode_text(os.fsencode(image.stem))[0].replace("_", " ").strip()
        return _without_a_file((name,) if name else ())
    shared = origin.file if origin.source == "one_file" else None
    file = shared or image.with_name(image.stem + origin.extension)
    if shared is None and leads_out(file, within or image.parent):
        return CaptionTexts((), "link", file)
    try:
        text, fault = read_text(file)
    except (OSError, ValueError) as error:  # also a name that is not a valid file name
        if isinstance(error, FileNotFoundError) and (default := origin.default_captions):
            return CaptionTexts(default)
        return CaptionTexts((), "missing", file)
    return CaptionTexts(*captions_of_text(fault, text), file)


def captions_of_text(fault: CaptionFault, text: str) -> tuple[tuple[str, ...], CaptionFault]:
    """Return the captions in the text of a file, and what is wrong with it, which may be its encoding."""
    texts = _lines(text)
    return texts, fault if texts else "empty"


def read_text(file: Path) -> tuple[str, CaptionFault]:
    """Return the text of a file, also of one in an archive, and its encoding if it is not UTF-8.

    Raises OSError where it cannot be read.
    """
    from modules.data.archives import read_bytes  # with the readers of archives, which few configs need

    return decode_text(read_bytes(file, _MAX_BYTES))


def caption_is_cacheable(
    caption: str, *, text_encoder_trains: bool, trained_tokens: Collection[str] = frozenset()
) -> bool:
    """Return whether a caption is encoded identically throughout a run, so that its text embeddings may be cached.

    Not where a text encoder is trained, nor where the caption contains a trained token (an embedding).
    """
    return not text_encoder_trains and not contains_any(caption, trained_tokens)


def _utf_16_without_mark(content: bytes) -> str:
    """Return the UTF-16 codec of a text without a byte order mark: every other byte of Latin letters is zero."""
    odd, even = content[1::2].count(0), content[::2].count(0)
    if max(odd, even) * 2 < len(content) // 2 or not content:
        return ""
    return "utf-16-le" if odd > even else "utf-16-be" if even > odd else ""


def _without_a_file(texts: tuple[str, ...]) -> CaptionTexts:
    return CaptionTexts(texts, "" if texts else "empty")


def _lines(text: str) -> tuple[str, ...]:
    return tuple(caption for line in text_lines(text) if (caption := line.strip()))


def text_lines(text: str) -> list[str]:
    """Return the lines of a text file; a caption may contain the other separators that `splitlines` knows."""
    return _LINE_END.split(text) if "\r" in text else text.split("\n")


def decode_text(content: bytes) -> tuple[str, CaptionFault]:
    """Return the text of some bytes, and the encoding if it is not UTF-8."""
    codec, mark = text_codec(content)
    text = content[len(mark) :].decode(codec, errors="replace")
    return text, _FAULTS[codec]


def text_codec(content: bytes) -> tuple[str, bytes]:
    """Return the codec that the bytes of a text file are in, and the byte order mark that they begin with."""
    for mark, codec in ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")):
        if content.startswith(mark):
            return codec, mark
    if bare := _utf_16_without_mark(content):
        return bare, b""
    mark = _UTF_8_MARK if content.startswith(_UTF_8_MARK) else b""
    for codec in ("utf-8", "cp1252"):
        try:
            content.decode(codec)
        except UnicodeDecodeError:
            continue
        return codec, mark if codec == "utf-8" else b""
    return "latin-1", b""


_UTF_8_MARK = b"\xef\xbb\xbf"
_FAULTS: Mapping[str, CaptionFault] = {
    "utf-8": "",
    "utf-16-le": "utf-16",
    "utf-16-be": "utf-16",
    "cp1252": "cp1252",
    "latin-1": "latin-1",
}
