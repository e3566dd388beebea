"""Pictures as CLIP wants them, in torch alone, so that a gradient passes: resize, centre crop, normalise.

The same as transformers' CLIPImageProcessor does with Pillow, but for the rounding to 256 levels: within 1.1 of them.
"""

from __future__ import annotations

import torch
from torch.nn import functional

_MEAN = (0.48145466, 0.4578275, 0.40821073)
_STD = (0.26862954, 0.26130258, 0.27577711)


def clip_input(pictures_B3PP: torch.Tensor, *, side_px: int) -> torch.Tensor:
    """Return pictures in [0, 1] with the shorter side resized to `side_px`, its middle square, CLIP's normalisation.

    Bicubic with antialiasing, whose filter is Pillow's (a = -0.5); what overshoots is clamped, as Pillow does.
    """
    height_px, width_px = pictures_B3PP.shape[-2:]
    shorter_px = min(height_px, width_px)
    size = (side_px * height_px // shorter_px, side_px * width_px // shorter_px)
    if size != (height_px, width_px):
        resized = functional.interpolate(pictures_B3PP, size, mode="bicubic", antialias=True, align_corners=False)
        pictures_B3PP = resized.clamp(0, 1)
    top_px, left_px = (size[0] - side_px) // 2, (size[1] - side_px) // 2
    square_B3SS = pictures_B3PP[..., top_px : top_px + side_px, left_px : left_px + side_px]
    mean_3, std_3 = (torch.tensor(v, dtype=square_B3SS.dtype, device=square_B3SS.device) for v in (_MEAN, _STD))
    return (square_B3SS - mean_3[:, None, None]) / std_3[:, None, None]
