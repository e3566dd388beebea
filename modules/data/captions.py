"""Captions: reading them, and choosing one for each use of an image."""

from __future__ import annotations

import os
import random
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from modules.system.regular_files import read_regular
from modules.system.seeds import derive_seed

_MAX_BYTES = 10_000_000  # of a text file; its captions have a few hundred

CaptionSource = Literal["text_file", "file_name", "one_file"]


def read_captions(image: Path, source: CaptionSource, captions_file: Path | None = None) -> tuple[str, ...]:
    """Return the captions of an image; an empty tuple where there are none.

    With the source "one_file" they are those of `captions_file`, the same for every image. A text file holds one
    caption per line; blank lines do not count. Text that is not UTF-8 is read as UTF-16 if it starts with a byte order
    mark, else as Windows-1252, the encoding of older tag editors.
    """
    if source == "file_name":
        name = _decode(os.fsencode(image.stem)).replace("_", " ").strip()
        return (name,) if name else ()
    file = captions_file if source == "one_file" and captions_file else image.with_suffix(".txt")
    try:
        content = read_regular(file, _MAX_BYTES)
    except (OSError, ValueError):  # also a name that is not a valid file name
        return ()
    return tuple(line.strip() for line in _decode(content).splitlines() if line.strip())


def choose_caption(
    captions: tuple[str, ...], *, dropout: float, run_seed: int, epoch: int, example: int, repeat: int
) -> str:
    """Return the caption for one use of an image: one of its own at random, or the empty one with probability
    `dropout`.
    """
    draw = random.Random(derive_seed(run_seed, "caption", epoch, example, repeat))
    if dropout > 0 and draw.random() < dropout:
        return ""
    return draw.choice(captions) if captions else ""


def caption_is_cacheable(
    caption: str, *, text_encoder_trains: bool, trained_tokens: Collection[str] = frozenset()
) -> bool:
    """Return whether a caption is encoded identically throughout a run, so that its text embeddings may be cached.

    Not where a text encoder is trained, nor where the caption contains a trained token (an embedding).
    """
    return not text_encoder_trains and not any(token in caption for token in trained_tokens)


def _decode(content: bytes) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", errors="replace")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")
