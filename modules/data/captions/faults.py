"""The problems of captions, as phrases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.data.captions.sources import CaptionFault
from modules.data.links import LEADS_OUT

if TYPE_CHECKING:
    from modules.data.scan import SourceImage

ENCODINGS: dict[CaptionFault, str] = {"utf-16": "UTF-16", "cp1252": "Windows-1252", "latin-1": "Latin-1"}


def fault_of_caption(image: SourceImage) -> str:
    """Return the problem with an image's caption, as a phrase; empty without one."""
    name = image.caption_file.name if image.caption_file else ""
    match image.caption_fault:
        case "":
            return ""
        case "missing":
            return f"{name} does not exist or cannot be read" if name else "it has no caption"
        case "link":
            return f"{name} is {LEADS_OUT}"
        case "empty":
            return f"{name} is empty" if name else "its caption is empty"
        case encoding:
            return f"{name} is not valid UTF-8 and was read as {ENCODINGS[encoding]}"
