"""The images of a sample that inpaints, prepared as diffusers' inpainting pipelines prepare them.

`StableDiffusionInpaintPipeline` and `StableDiffusionXLInpaintPipeline`, strength 1: the sample starts from noise alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate

from modules.data.buckets import Size
from modules.data.decode import flattened
from modules.data.images import opened, upright
from modules.data.transforms.masks import as_mask


@dataclass(frozen=True, eq=False)
class InpaintingImages:
    """What a sample inpaints: the mask (1, 1, P, P), 1 where it inpaints, and the image in [-1, 1] (1, 3, P, P), which
    is mid-gray there.
    """

    mask_11PP: torch.Tensor
    image_13PP: torch.Tensor

    def latent_mask(self, factor: int) -> torch.Tensor:
        """Return the mask (1, 1, H, W) at the size of latents that are smaller by a factor."""
        height, width = (side // factor for side in self.mask_11PP.shape[-2:])
        return interpolate(self.mask_11PP, size=(height, width))


def blank_images(size: Size) -> InpaintingImages:
    """Return the images of a sample that is inpainted everywhere: from the prompt alone."""
    return InpaintingImages(
        torch.ones(1, 1, size.height_px, size.width_px), torch.zeros(1, 3, size.height_px, size.width_px)
    )


def read_inpainting_images(base_image: Path, mask_image: Path, size: Size) -> InpaintingImages:
    """Return the images of a sample from files of any size; they are resized to that of the sample.

    The mask is white where the sample is inpainted. Raises OSError for a file that is missing or cannot be decoded.
    """
    wanted = (size.width_px, size.height_px)
    with opened(base_image) as raw:
        image = flattened(upright(raw)).resize(wanted, Image.Resampling.LANCZOS)
    with opened(mask_image) as raw:
        mask = as_mask(upright(raw)).resize(wanted, Image.Resampling.LANCZOS)
    unit_PP3 = torch.from_numpy(np.asarray(image, dtype=np.float32) / 255.0)
    gray_PP = torch.from_numpy(np.asarray(mask, dtype=np.float32) / 255.0)
    mask_11PP = (gray_PP >= 0.5).float()[None, None]
    image_13PP = 2.0 * unit_PP3.permute(2, 0, 1)[None] - 1.0
    return InpaintingImages(mask_11PP, image_13PP * (1.0 - mask_11PP))
