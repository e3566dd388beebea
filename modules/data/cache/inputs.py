"""The readers of a model's further inputs: which image is encoded or loaded for a version, and the key of its latents.

A reader resizes, crops and transforms the file of a `ModelInput`; the record names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from modules.data.buckets import LatentFactor, Size
from modules.data.cache.build import LoadableImage, to_tensor
from modules.data.cache.key import blank_image_key, conditioning_image_key, drawn_mask_key, masked_image_key
from modules.data.cache.masks import MaskFile, mask_file
from modules.data.cache.version_keys import Place
from modules.data.example import Example
from modules.data.inputs import ModelInput
from modules.data.transforms.apply import load_conditioning_image, load_pixels
from modules.data.transforms.recipe import Recipe, recipe_of_reference
from modules.data.versions import ImageVersion
from modules.system.factories import load_factory
from modules.system.seeds import derive_seed

BLANK = -1
"""The variation of an image whose mask is ignored: it is inpainted everywhere, and its conditioning image is blank."""


@dataclass(frozen=True, slots=True)
class KnownKeys:
    """The values from which the keys of an input's latents are made.

    `images` and `masks` are the keys of the versions' latents and mask files by place, `files` the digests of the
    input's files by example, `encoder` the identity of the VAE.
    """

    images: Mapping[Place, str]
    masks: Mapping[Place, str]
    files: Mapping[int, str]
    encoder: str


class InputReader(Protocol):
    """Reads an input of a model; built from its record and the family's latent factor."""

    def image(self, example: Example, version: ImageVersion) -> LoadableImage:
        """Return the image that is encoded, or whose tensor is the input, of a version of an example."""
        ...

    def key(self, example: Example, version: ImageVersion, known: KnownKeys) -> str:
        """Return the key of the latents of that image; needed if the input is encoded."""
        ...


def reader_of(record: ModelInput, latent_factor: LatentFactor) -> InputReader:
    """Return the reader of an input."""
    reader: InputReader = load_factory(record.reader)(record, latent_factor)
    return reader


@dataclass(frozen=True, slots=True)
class ConditioningImage:
    """An image from a file next to another, to which it is resized."""

    path: Path
    recipe: Recipe
    image_size: Size
    follows_colour: bool = False

    def load_tensor(self) -> torch.Tensor:
        """Return the conditioning image in [-1, 1], float32 (3, P, P), with the geometry of its image."""
        return to_tensor(
            load_conditioning_image(
                self.path, self.recipe, image_size=self.image_size, follows_colour=self.follows_colour
            )
        )


@dataclass(frozen=True, slots=True)
class BlankImage:
    """A gray image, for an example without a file, or for a use that ignores its mask."""

    path: Path
    recipe: Recipe

    def load_tensor(self) -> torch.Tensor:
        """Return mid-gray, float32 (3, P, P), or frames of it, (3, F, P, P)."""
        bucket = self.recipe.bucket
        frames = (bucket.num_frames,) if bucket.num_frames > 1 else ()
        return torch.zeros(3, *frames, bucket.height_px, bucket.width_px)


@dataclass(frozen=True, slots=True)
class CompanionImage:
    """The image next to an example's, with the same resize, crop, rotation and flip.

    Its colours are not augmented unless its record has `follows_colour`. An example without one gets a blank image.
    """

    record: ModelInput
    latent_factor: LatentFactor

    def image(self, example: Example, version: ImageVersion) -> LoadableImage:
        """Return the image of a version of an example."""
        file = example.input_files.get(self.record.name)
        if file is None or version.variation == BLANK:
            return BlankImage(example.image.path, version.recipe)
        size = example.image.size
        return ConditioningImage(file.path, version.recipe, size, self.record.follows_colour)

    def key(self, example: Example, version: ImageVersion, known: KnownKeys) -> str:
        """Return the key of the latents of that image."""
        if self.record.name not in example.input_files or version.variation == BLANK:
            return blank_image_key(bucket=version.recipe.bucket, encoder=known.encoder)
        return conditioning_image_key(
            digest=known.files[version.example],
            width_px=example.image.width_px,
            height_px=example.image.height_px,
            recipe=version.recipe,
            encoder=known.encoder,
            follows_colour=self.record.follows_colour,
        )


@dataclass(frozen=True, slots=True)
class ReferenceImage:
    """A reference image of an editing model, at the size that the record's `fit` gives it.

    An example that has none is not read.
    """

    record: ModelInput
    latent_factor: LatentFactor

    def image(self, example: Example, version: ImageVersion) -> LoadableImage:
        """Return the reference image of a version of an example."""
        recipe, size = self._recipe(example, version)
        return ConditioningImage(example.input_files[self.record.name].path, recipe, size, self.record.follows_colour)

    def key(self, example: Example, version: ImageVersion, known: KnownKeys) -> str:
        """Return the key of the latents of that image."""
        recipe, size = self._recipe(example, version)
        return conditioning_image_key(
            digest=known.files[version.example],
            width_px=size.width_px,
            height_px=size.height_px,
            recipe=recipe,
            encoder=known.encoder,
            follows_colour=self.record.follows_colour,
        )

    def _recipe(self, example: Example, version: ImageVersion) -> tuple[Recipe, Size]:
        """Return the recipe of the reference image, and the size to which it is resized before."""
        image, file = example.image.size, example.input_files[self.record.name]
        return recipe_of_reference(self.record.fit, version.recipe, file=file.size, image=image)


# The inputs of inpainting models: the mask of what is inpainted, and the conditioning image that shows the rest.
#
# The conditioning image is a file next to the image, or the image with mid-gray in place of its masked area, as the
# pipelines of diffusers make it (`StableDiffusionInpaintPipeline`: `masked_image = init_image * (mask_condition <
# 0.5)`).
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
    latent_factor: LatentFactor

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


@dataclass(frozen=True, slots=True)
class MaskPixels:
    """The reader of an inpainting mask: the pixels behind each latent are its channels. They are read at each use."""

    record: ModelInput
    latent_factor: LatentFactor

    def image(self, example: Example, version: ImageVersion) -> LoadableImage:
        """Return the mask of a version of an example."""
        return PixelMask(example.image.path, version.recipe, inpainting_mask_file(example, version, self.latent_factor))

    def key(self, example: Example, version: ImageVersion, known: KnownKeys) -> str:
        """Return an empty key: no entry is stored."""
        return ""


@dataclass(frozen=True, slots=True)
class PixelMask:
    """The pixels of a mask; without a file and a seed, everything is inpainted."""

    path: Path
    recipe: Recipe
    mask: MaskFile

    def load_tensor(self) -> torch.Tensor:
        """Return the mask by latents, float32 (F * F, H, W) for a factor F, 1 where it is at least half white."""
        bucket = self.recipe.bucket
        if self.mask.path is None and self.mask.seed is None:
            mask_PP = torch.ones(bucket.height_px, bucket.width_px)
        else:
            mask_PP = torch.from_numpy(self.mask.load_pixels() >= _HALF).float()
        return by_latents(mask_PP[None], self.mask.latent_factor)[0]


def by_latents(mask_BPP: torch.Tensor, factor: LatentFactor) -> torch.Tensor:
    """Return the pixels of masks (B, P, P) by latents, (B, F * F, H, W), rows before columns (`FluxFillPipeline`)."""
    return torch.nn.functional.pixel_unshuffle(mask_BPP[:, None], int(factor))


def inpainting_mask_file(example: Example, version: ImageVersion, latent_factor: LatentFactor) -> MaskFile:
    """Return the inpainting mask of a version of an example: its mask, or without one a random mask from its seed.

    A use that ignores its mask gets a white one.
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
