"""From the probabilities of a masker to a mask file. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from PIL import Image, ImageFilter

from modules.annotators.protocol import SoftMask
from modules.data.transforms.masks import Mask

MaskMode = Literal["skip", "replace", "add", "subtract", "blend"]
MASK_MODES: Mapping[MaskMode, str] = {
    "skip": "Only images without a mask",
    "replace": "Replace existing masks",
    "add": "Add to existing masks",
    "subtract": "Subtract from existing masks",
    "blend": "Blend with existing masks",
}


def drawn_mask(found: SoftMask, *, threshold: float, expand_px: int, smooth_px: int, is_inverted: bool = False) -> Mask:
    """Return the mask of some probabilities: white where they reach the threshold, grown, and with soft edges.

    `expand_px` grows the white on all sides, or shrinks it where it is negative; `smooth_px` is the radius of a blur.
    """
    from scipy.ndimage import distance_transform_edt  # takes a third of a second to import

    is_white = found >= threshold
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


def combined(old: Mask | None, new: Mask, mode: MaskMode, *, share: float = 1.0) -> Mask | None:
    """Return the mask to write, given that of the image, if it has one; None if that stays.

    `share` is how much of the new mask counts. An image without a mask is trained as a whole: a new mask is subtracted
    from white, and otherwise used as it is.
    """
    if old is None:
        return _between(np.full_like(new, 255), 255 - new if mode == "subtract" else new, share)
    if mode == "skip":
        return None
    return _between(old, _mixed(old, new, mode), share)


def _mixed(old: Mask, new: Mask, mode: MaskMode) -> Mask:
    match mode:
        case "add":
            return np.maximum(old, new)
        case "subtract":
            return np.minimum(old, 255 - new)
        case "blend":
            return ((old.astype(np.uint16) + new + 1) // 2).astype(np.uint8)
        case _:
            return new


def _between(old: Mask, new: Mask, share: float) -> Mask:
    if share >= 1:
        return new
    return (old + (new.astype(np.float32) - old) * share + 0.5).astype(np.uint8)
