"""The inputs of inpainting models: the mask of what is inpainted, and the conditioning image that shows the rest.

The conditioning image is a file next to the image, or the image with mid-gray in place of its masked area, as the
pipelines of diffusers make it (`StableDiffusionInpaintPipeline`: `masked_image = init_image * (mask_condition < 0.5)`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from modules.data.cache.build import LoadableImage, to_tensor
from modules.data.cache.inputs import BLANK, CompanionImage, KnownKeys
from modules.data.cache.key import drawn_mask_key, masked_image_key
from modules.data.cache.masks import MaskFile, mask_file
from modules.data.dataset import Example
from modules.data.inputs import ModelInput
from modules.data.transforms.apply import load_pixels
from modules.data.transforms.recipe import Recipe
from modules.data.versions import ImageVersion
from modules.system.seeds import derive_seed

_HALF = 128  # and above: inpainted


@dataclass(frozen=True, slots=True)
class ImageWithoutMask:
    """An image without its masked area."""

    path: Path
    recipe: Recipe
    mask: MaskFile

    def load_tensor(self) -> torch.Tensor:
        """Return the image in [-1, 1], float32 (3, P, P), 0 where the mask is at least half white."""
        image_3PP = to_tensor(load_pixels(self.path, self.recipe))
        image_3PP[:, torch.from_numpy(self.mask.load_pixels() >= _HALF)] = 0.0
        return image_3PP


@dataclass(frozen=True, slots=True)
class MaskedImage:
    """The conditioning image of an inpainting model: the file of an example, or its image without the masked area."""

    record: ModelInput
    latent_factor: int

    def image(self, example: Example, version: ImageVersion) -> LoadableImage:
        """Return the conditioning image of a version of an example."""
        if self._is_companion(example, version):
            return CompanionImage(self.record, self.latent_factor).image(example, version)
        mask = inpainting_mask_file(example, version, self.latent_factor)
        return ImageWithoutMask(example.image.path, version.recipe, mask)

    def key(self, example: Example, version: ImageVersion, known: KnownKeys) -> str:
        """Return the key of the latents of that image."""
        if self._is_companion(example, version):
            return CompanionImage(self.record, self.latent_factor).key(example, version, known)
        drawn = drawn_mask_key(seed=_mask_seed(version), bucket=version.recipe.bucket)
        return masked_image_key(image=known.images[version.place], mask=known.masks.get(version.place) or drawn)

    def _is_companion(self, example: Example, version: ImageVersion) -> bool:
        return version.variation == BLANK or self.record.name in example.input_files


def inpainting_mask_file(example: Example, version: ImageVersion, latent_factor: int) -> MaskFile:
    """Return the inpainting mask of a version of an example: its mask, or without one a random mask from its seed.

    That of a use which ignores its mask is white.
    """
    file = mask_file(example, version.recipe, latent_factor)
    if version.variation == BLANK:
        return replace(file, path=None, seed=None)
    return file if file.path is not None else replace(file, seed=_mask_seed(version))


def inpainting_mask(mask_1HW: torch.Tensor) -> torch.Tensor:
    """Return which latents are inpainted: 1 where at least half of the mask over the pixels it covers is white."""
    return (mask_1HW >= 0.5).to(mask_1HW.dtype)


def _mask_seed(version: ImageVersion) -> int:
    return derive_seed(version.seed, "inpainting mask")
