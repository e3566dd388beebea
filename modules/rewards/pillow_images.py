"""Images of a batch as Pillow images, for rewards that need no gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:  # see `scorers/`
    import torch


def pillow_images(images_B3PP: torch.Tensor) -> list[Image.Image]:
    """Return images in [0, 1] as RGB images, rounded to 256 levels like saved samples."""
    levels_BPP3 = (images_B3PP.detach().float().clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1)
    return [Image.fromarray(levels_PP3.numpy(force=True)) for levels_PP3 in levels_BPP3]
