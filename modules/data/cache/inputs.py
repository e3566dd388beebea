"""The readers of a model's further inputs: which image is encoded or loaded for a version, and the key of its latents.

A reader resizes, crops and transforms the file of a `ModelInput`; the record names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from modules.data.buckets import Size
from modules.data.cache.build import LoadableImage, to_tensor
from modules.data.cache.key import blank_image_key, conditioning_image_key
from modules.data.dataset import Example
from modules.data.inputs import ModelInput
from modules.data.transforms.apply import load_conditioning_image
from modules.data.transforms.recipe import Recipe
from modules.data.versions import ImageVersion
from modules.system.factories import load_factory

BLANK = -1
"""The variation of an image whose mask is ignored: it is inpainted everywhere, and its conditioning image is blank."""

Place = tuple[int, int, int]
"""The example, the resolution and the variation of a version."""


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


def reader_of(record: ModelInput, latent_factor: int) -> InputReader:
    """Return the reader of an input."""
    reader: InputReader = load_factory(record.reader)(record, latent_factor)
    return reader


@dataclass(frozen=True, slots=True)
class ConditioningImage:
    """An image from a file next to another, to which it is resized."""

    path: Path
    recipe: Recipe
    image_size: Size

    def load_tensor(self) -> torch.Tensor:
        """Return the conditioning image in [-1, 1], float32 (3, P, P), with the geometry of its image."""
        return to_tensor(load_conditioning_image(self.path, self.recipe, image_size=self.image_size))


@dataclass(frozen=True, slots=True)
class BlankImage:
    """A gray image: that of an example without a file, or of a use that ignores its mask."""

    path: Path
    recipe: Recipe

    def load_tensor(self) -> torch.Tensor:
        """Return mid-gray, float32 (3, P, P)."""
        return torch.zeros(3, self.recipe.bucket.height_px, self.recipe.bucket.width_px)


@dataclass(frozen=True, slots=True)
class CompanionImage:
    """The image next to an example's, with the same resize, crop, rotation and flip; its colours are not augmented.

    An example without one gets a blank image.
    """

    record: ModelInput
    latent_factor: int

    def image(self, example: Example, version: ImageVersion) -> LoadableImage:
        """Return the image of a version of an example."""
        file = example.input_files.get(self.record.name)
        if file is None or version.variation == BLANK:
            return BlankImage(example.image.path, version.recipe)
        size = Size(example.image.width_px, example.image.height_px)
        return ConditioningImage(file.path, version.recipe, size)

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
        )
