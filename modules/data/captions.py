"""Captions: where they come from, and which one an image gets this time."""

from __future__ import annotations

import os
import random
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from modules.system.seeds import derive_seed

CaptionSource = Literal["text_file", "file_name", "one_file"]


def read_captions(image: Path, source: CaptionSource, captions_file: Path | None = None) -> tuple[str, ...]:
    """Return the captions of an image, one or more where there are any, else an empty tuple.

    With the source "one_file" they are those of `captions_file`, the same for every image. A text file holds one
    caption per line; blank lines do not count. Text that is not UTF-8 is read as UTF-16 where it says so by its first
    bytes, else as Windows-1252, which decodes what older tag editors wrote.
    """
    if source == "file_name":
        name = _decode(os.fsencode(image.stem)).replace("_", " ").strip()
        return (name,) if name else ()
    file = captions_file if source == "one_file" and captions_file else image.with_suffix(".txt")
    try:
        content = file.read_bytes()
    except (OSError, ValueError):  # also a name no file can have
        return ()
    return tuple(line.strip() for line in _decode(content).splitlines() if line.strip())


def choose_caption(
    captions: tuple[str, ...], *, dropout: float, run_seed: int, epoch: int, example: int, repeat: int
) -> str:
    """Return the caption of one showing of an image: one of its own by lot, or the empty one by `dropout`."""
    draw = random.Random(derive_seed(run_seed, "caption", epoch, example, repeat))
    if dropout > 0 and draw.random() < dropout:
        return ""
    return draw.choice(captions) if captions else ""


def caption_is_cacheable(
    caption: str, *, text_encoder_trains: bool, trained_tokens: Collection[str] = frozenset()
) -> bool:
    """Return whether a caption is encoded the same way throughout a run, so that its text states may be cached.

    It is not where a text encoder is trained, nor where the caption holds a trained token (an embedding).
    """
    return not text_encoder_trains and not any(token in caption for token in trained_tokens)


def _decode(content: bytes) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", errors="replace")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")
