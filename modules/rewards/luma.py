"""The luma of pixels, which the contrast and sharpness rewards are computed from."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # see `scorers/`
    import torch

_REC_709 = (0.2126, 0.7152, 0.0722)


def luma(images_B3PP: torch.Tensor) -> torch.Tensor:
    """Return the luma (B, P, P) of images in [0, 1]: a weighted sum of their values as stored (ITU-R BT.709)."""
    red_BPP, green_BPP, blue_BPP = images_B3PP.unbind(dim=1)
    red, green, blue = _REC_709
    return red * red_BPP + green * green_BPP + blue * blue_BPP
