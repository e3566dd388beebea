"""The depth map of an image, as the depth model of SD 2 gets it: from a file, since no depth is estimated here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate

from modules.data.buckets import LatentFactor, Size
from modules.data.cache.build import LoadableImage, to_tensor
from modules.data.cache.inputs import KnownKeys
from modules.data.companions import Companion
from modules.data.decode import flatten
from modules.data.example import Example
from modules.data.images import open_image, upright
from modules.data.inputs import ModelInput
from modules.data.transforms.apply import load_conditioning_image
from modules.data.transforms.recipe import Recipe
from modules.data.versions import ImageVersion

_MIN_RANGE = 1e-6  # less is flat


def latent_depth(depth_B1PP: torch.Tensor, factor: LatentFactor) -> torch.Tensor:
    """Return depth maps (B, 1, P, P) of any range at the size of latents (B, 1, H, W), each from -1 to 1.

    As `StableDiffusionDepth2ImgPipeline` prepares them. A flat one is 0.
    """
    height, width = (side // factor for side in depth_B1PP.shape[-2:])
    small_B1HW = interpolate(depth_B1PP, size=(height, width), mode="bicubic", align_corners=False)
    lowest_B111 = small_B1HW.amin(dim=(1, 2, 3), keepdim=True)
    range_B111 = small_B1HW.amax(dim=(1, 2, 3), keepdim=True) - lowest_B111
    scaled_B1HW = 2.0 * (small_B1HW - lowest_B111) / range_B111.clamp(min=_MIN_RANGE) - 1.0
    return torch.where(range_B111 > _MIN_RANGE, scaled_B1HW, torch.zeros_like(scaled_B1HW))


@dataclass(frozen=True, slots=True)
class DepthImage:
    """The depth map of a version of an image, at the size of its latents; without a file it is flat."""

    path: Path
    recipe: Recipe
    file: Companion | None
    image_size: Size
    latent_factor: LatentFactor

    def load_tensor(self) -> torch.Tensor:
        """Return the depth map from -1 to 1, float32 (1, H, W), with the geometry of its image.

        Raises BrokenImageError if it cannot be decoded.
        """
        if self.file is None:
            bucket = self.recipe.bucket
            return torch.zeros(1, bucket.height_px // self.latent_factor, bucket.width_px // self.latent_factor)
        image_PP3 = load_conditioning_image(self.file.path, self.recipe, image_size=self.image_size)
        depth_1PP = to_tensor(image_PP3).mean(dim=0, keepdim=True)
        return latent_depth(depth_1PP[None], self.latent_factor)[0]


@dataclass(frozen=True, slots=True)
class DepthMap:
    """The reader of the depth maps of a depth model. They are not encoded, and read at each use."""

    record: ModelInput
    latent_factor: LatentFactor

    def image(self, example: Example, version: ImageVersion) -> LoadableImage:
        """Return the depth map of a version of an example."""
        size, file = example.image.size, example.input_files.get(self.record.name)
        return DepthImage(example.image.path, version.recipe, file, size, self.latent_factor)

    def key(self, example: Example, version: ImageVersion, known: KnownKeys) -> str:
        """Return an empty key: no entry is stored."""
        return ""


def load_sample_depth(path: Path, size: Size) -> torch.Tensor:
    """Return the depth map of a sample, float32 (1, P, P), resized to it. Raises OSError where it cannot be read."""
    with open_image(path) as raw:
        image = flatten(upright(raw)).resize((size.width_px, size.height_px), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.asarray(image, dtype=np.float32) / 255.0).mean(dim=-1)[None]
