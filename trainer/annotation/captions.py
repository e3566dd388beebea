"""Captions for the images of a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from modules.annotators.protocol import DEFAULT_CAPTION_SETTINGS, Captioner, CaptionSettings
from modules.annotators.results import CaptionMode, merge_caption
from modules.data.captions.caption_file import CaptionFile, read_caption_file, with_text
from modules.data.decode import flatten
from modules.data.images import open_image, upright
from modules.data.links import LEADS_OUT, leads_out
from modules.system.atomic import write_bytes
from trainer.annotation.originals import Originals
from trainer.annotation.work import Done, Work


@dataclass(frozen=True, slots=True)
class CaptionRequest:
    """Which captions to write: for the images of a folder, by the captioner of a name.

    `prefix` and `suffix` are put around each caption as they are. `device` is "auto" or a device's name.
    """

    folder: Path
    model: str
    mode: CaptionMode = "skip"
    include_subfolders: bool = False
    extension: str = ".txt"
    prefix: str = ""
    suffix: str = ""
    settings: CaptionSettings = DEFAULT_CAPTION_SETTINGS
    device: str = "auto"


def caption_work(request: CaptionRequest, load: Callable[[], Captioner], originals: Originals) -> Work:
    """Return the work of a request; `load()` returns its captioner, loaded when the first image needs it."""

    def is_left(image: Path) -> str | None:
        if leads_out(_file_of(image, request), request.folder):
            return LEADS_OUT
        try:
            file = read_caption_file(_file_of(image, request))
        except OSError as error:
            return error.strerror or str(error)
        if file.text.strip() and request.mode == "skip":
            return ""
        if not file.is_editable and request.mode != "replace":
            return "its caption file is not valid text"
        return None

    loaded: list[Captioner] = []

    def do(image: Path) -> Done:
        if not loaded:
            loaded.append(load())
        with open_image(image) as raw:
            rgb = flatten(upright(raw))
        found = loaded[0].caption(rgb).strip()
        caption = f"{request.prefix}{found}{request.suffix}" if found else ""
        return _write(_file_of(image, request), caption, request.mode, originals)

    return Work(request.folder, request.include_subfolders, is_left, do)


def _write(path: Path, caption: str, mode: CaptionMode, originals: Originals) -> Done:
    """Write a caption; the file is read again, because it may have changed while the model ran."""
    file = read_caption_file(path)
    text = merge_caption(file, caption, mode)
    if text is None:
        return Done(has_written=False)
    originals.keep(path)
    # A replaced caption is written as plain UTF-8, whatever the old one was.
    base = file if file.is_editable and mode != "replace" else CaptionFile(None)
    write_bytes(Path(os.path.realpath(path)), with_text(base, text))
    return Done(has_written=True, text=text)


def _file_of(image: Path, request: CaptionRequest) -> Path:
    return image.with_name(image.stem + request.extension)
