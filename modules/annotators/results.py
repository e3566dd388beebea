"""From a captioner's text to a caption file, and from a masker's probabilities to a mask file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from PIL import Image, ImageFilter

from modules.annotators.protocol import SoftMask
from modules.data.captions.caption_file import CaptionFile
from modules.data.transforms.masks import Mask

CaptionMode = Literal["skip", "replace", "new_line", "append"]
CAPTION_MODES: Mapping[CaptionMode, str] = {
    "skip": "Only images without a caption",
    "replace": "Replace existing captions",
    "new_line": "Add as a new line",
    "append": "Append to the first line",
}
_DELIMITER = ","


def merge_caption(file: CaptionFile, caption: str, mode: CaptionMode) -> str | None:
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
        return _add_line(file.text, caption)
    return _append_tags(file.text, caption)


def _add_line(text: str, caption: str) -> str | None:
    if caption.strip() in (line.strip() for line in text.split("\n")):
        return None
    return f"{text}{caption}\n" if text.endswith("\n") else f"{text}\n{caption}"


def _append_tags(text: str, caption: str) -> str | None:
    lines = text.split("\n")
    place = next(index for index, line in enumerate(lines) if line.strip())
    present = {tag.strip() for tag in lines[place].split(_DELIMITER)}
    new = [tag for piece in caption.split(_DELIMITER) if (tag := piece.strip()) and tag not in present]
    if not new:
        return None
    lines[place] = f"{_DELIMITER} ".join([lines[place].rstrip().removesuffix(_DELIMITER), *dict.fromkeys(new)])
    return "\n".join(lines)


MaskMode = Literal["skip", "replace", "add", "subtract", "blend"]
MASK_MODES: Mapping[MaskMode, str] = {
    "skip": "Only images without a mask",
    "replace": "Replace existing masks",
    "add": "Add to existing masks",
    "subtract": "Subtract from existing masks",
    "blend": "Blend with existing masks",
}


def draw_mask(
    probabilities: SoftMask, *, threshold: float, expand_px: int, smooth_px: int, is_inverted: bool = False
) -> Mask:
    """Return the mask of some probabilities: white where they reach the threshold, grown, and with soft edges.

    `expand_px` grows the white on all sides, or shrinks it where it is negative; `smooth_px` is the radius of a blur.
    """
    from scipy.ndimage import distance_transform_edt  # takes a third of a second to import

    is_white = probabilities >= threshold
    if is_inverted:
        is_white = ~is_white
    if expand_px > 0 and is_white.any():
        is_white = distance_transform_edt(~is_white) <= expand_px
    elif expand_px < 0 and not is_white.all():
        is_white = distance_transform_edt(is_white) > -expand_px
    mask = is_white.astype(np.uint8) * 255
    if smooth_px <= 0:
        return mask
    return np.asarray(Image.fromarray(mask).filter(ImageFilter.GaussianBlur(smooth_px)), np.uint8)


def combine_masks(old: Mask | None, new: Mask, mode: MaskMode, *, share: float = 1.0) -> Mask | None:
    """Return the mask to write, given the `old` mask of the image, if it has one; None if the old one stays.

    `share` is how much of the new mask counts. An image without a mask is trained as a whole: a new mask is subtracted
    from white, and otherwise used as it is.
    """
    if old is None:
        return _interpolate(np.full_like(new, 255), 255 - new if mode == "subtract" else new, share)
    if mode == "skip":
        return None
    return _interpolate(old, _mix(old, new, mode), share)


def _mix(old: Mask, new: Mask, mode: MaskMode) -> Mask:
    match mode:
        case "add":
            return np.maximum(old, new)
        case "subtract":
            return np.minimum(old, 255 - new)
        case "blend":
            return ((old.astype(np.uint16) + new + 1) // 2).astype(np.uint8)
        case _:
            return new


def _interpolate(old: Mask, new: Mask, share: float) -> Mask:
    if share >= 1:
        return new
    return (old + (new.astype(np.float32) - old) * share + 0.5).astype(np.uint8)
