"""The masks of a batch: read with their images' recipes on a loader thread, delivered at the size of the latents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from modules.data.buckets import Size
from modules.data.dataset import Dataset
from modules.data.transforms.apply import load_mask
from modules.data.transforms.masks import Mask
from modules.data.versions import ImageVersion
from modules.objectives.denoise import area_weights
from modules.system.devices import Device, move


@dataclass(frozen=True, eq=False)
class MaskSource:
    """Delivers the masks of versions of images. An image without a mask is trained everywhere: its mask is white."""

    dataset: Dataset
    device: Device
    unmasked_weight: float
    normalises: bool

    def prepare(self, version: ImageVersion) -> Mask:
        """Return a mask in pixels, uint8 (height, width) of its bucket. Raises OSError for an unreadable file."""
        example = self.dataset.examples[version.example]
        bucket = version.recipe.bucket
        if example.mask is None:
            return np.full((bucket.height_px, bucket.width_px), 255, np.uint8)
        size = Size(example.image.width_px, example.image.height_px)
        return load_mask(example.mask.path, version.recipe, image_size=size, is_alpha=example.mask.is_alpha)

    def deliver(self, masks: Sequence[Mask], latents_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the masks at the size of the latents, float32 (B, 1, H, W) in [0, 1], on the training device.

        Each element is the mean of the pixels it covers, as its latent describes all of them.
        """
        pixels = torch.stack([torch.from_numpy(mask.copy()) for mask in masks])[:, None].float() / 255
        height, width = latents_BCHW.shape[-2:]
        return move(torch.nn.functional.adaptive_avg_pool2d(pixels, (height, width)), self.device)

    def area_weights(self, masks_B1HW: torch.Tensor) -> torch.Tensor:
        """Return the weights of the errors of each place, (B, 1, H, W): see `area_weights`."""
        return area_weights(masks_B1HW, unmasked_weight=self.unmasked_weight, normalises=self.normalises)
