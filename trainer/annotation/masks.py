"""Masks for the images of a folder."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from modules.annotators.protocol import DEFAULT_MASK_SETTINGS, Masker, MaskSettings
from modules.annotators.results import MaskMode, combine_masks, draw_mask
from modules.data.companions import mask_path_of
from modules.data.decode import flatten
from modules.data.images import open_image, upright
from modules.data.links import LEADS_OUT, leads_out
from modules.data.transforms.masks import Mask, as_mask
from modules.system.atomic import write_bytes
from trainer.annotation.originals import Originals
from trainer.annotation.work import Done, Work


@dataclass(frozen=True, slots=True)
class MaskRequest:
    """Which masks to write: for the images of a folder, by the masker of a name.

    `expand_px` and `smooth_px` are in pixels of the image; `share` is how much of the new mask counts, from 0 to 1.
    """

    folder: Path
    model: str
    mode: MaskMode = "skip"
    include_subfolders: bool = False
    masks_folder: Path | None = None
    expand_px: int = 10
    smooth_px: int = 5
    share: float = 1.0
    is_inverted: bool = False
    settings: MaskSettings = DEFAULT_MASK_SETTINGS
    device: str = "auto"


def mask_work(request: MaskRequest, load: Callable[[], Masker], originals: Originals) -> Work:
    """Return the work of a request; `load()` returns its masker, loaded when the first image needs it."""
    loaded: list[Masker] = []

    def is_left(image: Path) -> str | None:
        if leads_out(_file_of(image, request), request.masks_folder or request.folder):
            return LEADS_OUT
        return "" if request.mode == "skip" and _file_of(image, request).exists() else None

    def do(image: Path) -> Done:
        if not loaded:
            loaded.append(load())
        with open_image(image) as raw:
            rgb = flatten(upright(raw))
        new = draw_mask(
            loaded[0].mask(rgb),
            threshold=request.settings.threshold,
            expand_px=request.expand_px,
            smooth_px=request.smooth_px,
            is_inverted=request.is_inverted,
        )
        path = _file_of(image, request)
        mask = combine_masks(_old_mask(path, rgb.size), new, request.mode, share=request.share)
        if mask is None:
            return Done(has_written=False)
        originals.keep(path)
        stream = io.BytesIO()
        Image.fromarray(mask).save(stream, "PNG")
        write_bytes(Path(os.path.realpath(path)), stream.getvalue())
        return Done(has_written=True)

    return Work(request.folder, request.include_subfolders, is_left, do)


def _old_mask(path: Path, size: tuple[int, int]) -> Mask | None:
    """Return the mask of an image at its size (width, height), if it has one. Raises BrokenImageError."""
    if not path.is_file():
        return None
    with open_image(path) as raw:
        mask = as_mask(upright(raw))
    return np.asarray(mask if mask.size == size else mask.resize(size, Image.Resampling.BILINEAR), np.uint8)


def _file_of(image: Path, request: MaskRequest) -> Path:
    if request.masks_folder is None:
        return mask_path_of(image)
    inside = image.relative_to(request.folder) if image.is_relative_to(request.folder) else Path(image.name)
    return request.masks_folder / inside.with_suffix(".png")
