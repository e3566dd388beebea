"""The depth maps of a batch: read from the files beside the images, on a loader thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from modules.data.buckets import Size
from modules.data.dataset import Dataset
from modules.data.depth import latent_depth, load_training_depth
from modules.data.versions import ImageVersion
from modules.system.devices import Device, move_async


@dataclass(frozen=True, eq=False)
class DepthSource:
    """Delivers the depth maps of versions of images, at the size of their latents. One without a file is flat."""

    dataset: Dataset
    device: Device
    latent_factor: int

    def prepare(self, version: ImageVersion) -> torch.Tensor:
        """Return a depth map from -1 to 1, float32 (1, H, W). Raises OSError for an unreadable file."""
        example, bucket = self.dataset.examples[version.example], version.recipe.bucket
        if example.conditioning_image is None:
            return torch.zeros(1, bucket.height_px // self.latent_factor, bucket.width_px // self.latent_factor)
        size = Size(example.image.width_px, example.image.height_px)
        depth_1PP = load_training_depth(example.conditioning_image.path, version.recipe, image_size=size)
        return latent_depth(depth_1PP[None], self.latent_factor)[0]

    def deliver(self, prepared: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        """Return the depth maps of a batch, (B, 1, H, W), on the training device."""
        return move_async(torch.stack([*prepared]).to(dtype), self.device)
