"""The inputs of inpainting models: the mask of what is inpainted, and the conditioning image that shows the rest.

The conditioning image is a file beside the image, or the image with mid-gray in place of its masked area, as the
pipelines of diffusers make it (`StableDiffusionInpaintPipeline`: `masked_image = init_image * (mask_condition < 0.5)`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from modules.data.buckets import Size
from modules.data.cache.build import EncodingJob, to_tensor
from modules.data.cache.key import blank_image_key, conditioning_image_key, drawn_mask_key, masked_image_key
from modules.data.cache.masks import MaskFile, mask_file
from modules.data.dataset import Example
from modules.data.transforms.apply import load_conditioning_image, load_pixels
from modules.data.transforms.recipe import Recipe
from modules.data.versions import ImageVersion
from modules.system.seeds import derive_seed

BLANK = -1
"""The variation of an image whose mask is ignored: it is inpainted everywhere, and its conditioning image is blank."""

_HALF = 128  # and above: inpainted


@dataclass(frozen=True, slots=True)
class MaskedImageJob:
    """An image without its masked area, to encode, and the key of its latents."""

    key: str
    path: Path
    recipe: Recipe
    mask: MaskFile

    def load_tensor(self) -> torch.Tensor:
        """Return the image in [-1, 1], float32 (3, P, P), 0 where the mask is at least half white."""
        image_3PP = to_tensor(load_pixels(self.path, self.recipe))
        image_3PP[:, torch.from_numpy(self.mask.load_pixels() >= _HALF)] = 0.0
        return image_3PP


@dataclass(frozen=True, slots=True)
class ConditioningImageJob:
    """A conditioning image from a file, to encode, and the key of its latents."""

    key: str
    path: Path
    recipe: Recipe
    image_size: Size

    def load_tensor(self) -> torch.Tensor:
        """Return the conditioning image in [-1, 1], float32 (3, P, P), with the geometry of its image."""
        return to_tensor(load_conditioning_image(self.path, self.recipe, image_size=self.image_size))


@dataclass(frozen=True, slots=True)
class BlankJob:
    """A conditioning image that is masked everywhere, to encode, and the key of its latents."""

    key: str
    path: Path
    recipe: Recipe

    def load_tensor(self) -> torch.Tensor:
        """Return mid-gray, float32 (3, P, P)."""
        return torch.zeros(3, self.recipe.bucket.height_px, self.recipe.bucket.width_px)


def inpainting_mask_file(example: Example, version: ImageVersion, latent_factor: int) -> MaskFile:
    """Return the inpainting mask of a version of an example: its mask, or without one a random mask from its seed."""
    file = mask_file(example, version.recipe, latent_factor)
    return file if file.path is not None else replace(file, seed=_mask_seed(version))


def conditioning_job(example: Example, version: ImageVersion, latent_factor: int, *, key: str = "") -> EncodingJob:
    """Return the job that encodes the conditioning image of a version of an example."""
    if version.variation == BLANK:
        return BlankJob(key, example.image.path, version.recipe)
    if (custom := example.conditioning_image) is not None:
        size = Size(example.image.width_px, example.image.height_px)
        return ConditioningImageJob(key, custom.path, version.recipe, size)
    mask = inpainting_mask_file(example, version, latent_factor)
    return MaskedImageJob(key, example.image.path, version.recipe, mask)


def conditioning_key(
    example: Example,
    version: ImageVersion,
    *,
    image_keys: Mapping[tuple[int, int, int], str],
    mask_keys: Mapping[tuple[int, int, int], str],
    custom_digest: str,
    encoder: str,
) -> str:
    """Return the key of the latents of a version's conditioning image.

    `image_keys` and `mask_keys` are those of the versions' latents and mask files; `custom_digest` is the digest of the
    example's conditioning image, if it has one, and `encoder` the identity of the VAE.
    """
    bucket = version.recipe.bucket
    if version.variation == BLANK:
        return blank_image_key(bucket=bucket, encoder=encoder)
    if example.conditioning_image is not None:
        return conditioning_image_key(
            digest=custom_digest,
            width_px=example.image.width_px,
            height_px=example.image.height_px,
            recipe=version.recipe,
            encoder=encoder,
        )
    mask = mask_keys.get(version.place) or drawn_mask_key(seed=_mask_seed(version), bucket=bucket)
    return masked_image_key(image=image_keys[version.place], mask=mask)


def inpainting_mask(mask_1HW: torch.Tensor) -> torch.Tensor:
    """Return which latents are inpainted: 1 where at least half of the mask over the pixels it covers is white."""
    return (mask_1HW >= 0.5).to(mask_1HW.dtype)


def _mask_seed(version: ImageVersion) -> int:
    return derive_seed(version.seed, "inpainting mask")
