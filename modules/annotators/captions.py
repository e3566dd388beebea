"""From the text of a captioner to the text of a caption file. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from modules.data.captions.caption_file import CaptionFile

CaptionMode = Literal["skip", "replace", "new_line", "append"]
CAPTION_MODES: Mapping[CaptionMode, str] = {
    "skip": "Only images without a caption",
    "replace": "Replace existing captions",
    "new_line": "Add as a new line",
    "append": "Append to the first line",
}
_DELIMITER = ","


def merged(file: CaptionFile, caption: str, mode: CaptionMode) -> str | None:
    """Return the new text of a caption file; None if it stays as it is.

    A blank file counts as one without a caption. Appended tags that the first line has are left out, and so is a new
    line that the file has.
    """
    if not caption.strip():
        return None
    if not file.text.strip() or mode == "replace":
        return caption if caption != file.text else None
    if mode == "skip":
        return None
    if mode == "new_line":
        return _with_line(file.text, caption)
    return _appended(file.text, caption)


def _with_line(text: str, caption: str) -> str | None:
    if caption.strip() in (line.strip() for line in text.split("\n")):
        return None
    return f"{text}{caption}\n" if text.endswith("\n") else f"{text}\n{caption}"


def _appended(text: str, caption: str) -> str | None:
    lines = text.split("\n")
    place = next(index for index, line in enumerate(lines) if line.strip())
    present = {tag.strip() for tag in lines[place].split(_DELIMITER)}
    new = [tag for piece in caption.split(_DELIMITER) if (tag := piece.strip()) and tag not in present]
    if not new:
        return None
    lines[place] = f"{_DELIMITER} ".join([lines[place].rstrip().removesuffix(_DELIMITER), *dict.fromkeys(new)])
    return "\n".join(lines)
