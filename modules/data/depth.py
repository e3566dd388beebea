"""The depth map of an image, as the depth model of SD 2 gets it: from a file, since no depth is estimated here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate

from modules.data.buckets import Size
from modules.data.cache.build import to_tensor
from modules.data.decode import flattened
from modules.data.images import opened, upright
from modules.data.transforms.apply import load_conditioning_image
from modules.data.transforms.recipe import Recipe

_MIN_RANGE = 1e-6  # less is flat


def latent_depth(depth_B1PP: torch.Tensor, factor: int) -> torch.Tensor:
    """Return depth maps (B, 1, P, P) of any range at the size of latents (B, 1, H, W), each from -1 to 1.

    As `StableDiffusionDepth2ImgPipeline` prepares them. A flat one is 0.
    """
    height, width = (side // factor for side in depth_B1PP.shape[-2:])
    small_B1HW = interpolate(depth_B1PP, size=(height, width), mode="bicubic", align_corners=False)
    lowest_B111 = small_B1HW.amin(dim=(1, 2, 3), keepdim=True)
    range_B111 = small_B1HW.amax(dim=(1, 2, 3), keepdim=True) - lowest_B111
    scaled_B1HW = 2.0 * (small_B1HW - lowest_B111) / range_B111.clamp(min=_MIN_RANGE) - 1.0
    return torch.where(range_B111 > _MIN_RANGE, scaled_B1HW, torch.zeros_like(scaled_B1HW))


def load_training_depth(path: Path, recipe: Recipe, *, image_size: Size) -> torch.Tensor:
    """Return the depth map of an image of that size, float32 (1, P, P), with the geometry of its image.

    Raises BrokenImageError where it cannot be decoded.
    """
    return to_tensor(load_conditioning_image(path, recipe, image_size=image_size)).mean(dim=0, keepdim=True)


def load_sample_depth(path: Path, size: Size) -> torch.Tensor:
    """Return the depth map of a sample, float32 (1, P, P), resized to it. Raises OSError where it cannot be read."""
    with opened(path) as raw:
        image = flattened(upright(raw)).resize((size.width_px, size.height_px), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.asarray(image, dtype=np.float32) / 255.0).mean(dim=-1)[None]
