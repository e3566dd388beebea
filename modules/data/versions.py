"""The versions of a dataset's images: which draw of the augmentations each use of an image gets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from modules.data.buckets import Size
from modules.data.dataset import ConceptFacts, Dataset
from modules.data.order import SampleIndex
from modules.data.size_conditioning import SizeConditioning
from modules.data.transforms.recipe import Recipe, draw_recipe, is_random
from modules.system.seeds import derive_seed


@dataclass(frozen=True, slots=True)
class ImageVersion:
    """One version of an image: at one of its resolutions, with one draw of its augmentations."""

    example: int
    resolution: int
    variation: int
    recipe: Recipe
    size_conditioning: SizeConditioning

    @property
    def place(self) -> tuple[int, int, int]:
        """The example, the resolution and the variation, which identify it among the cached versions."""
        return self.example, self.resolution, self.variation


@dataclass(frozen=True, eq=False)
class ImageVersions:
    """The versions of all images of a dataset: a function of the seed, the image's name, its bucket and the variation.

    The seed is the concept's, or the run's where it has none. The name is the file's path within the concept's folder,
    so adding an image changes no other. Cached, an epoch uses variation `epoch` modulo the concept's image variations;
    otherwise each use in each epoch is drawn anew.
    """

    dataset: Dataset
    run_seed: int
    is_cached: bool

    def of(self, sample_index: SampleIndex, epoch: int) -> ImageVersion:
        """Return the version of an image that a sample of an epoch is."""
        if self.is_cached:
            concept = self.dataset.concepts[self.dataset.examples[sample_index.example].concept]
            return self._version(sample_index.example, sample_index.resolution, epoch % num_variations(concept), 0)
        return self._version(sample_index.example, sample_index.resolution, epoch, sample_index.repeat)

    def cached(self) -> Iterator[ImageVersion]:
        """Yield every version that a cached run can use, by example, resolution and variation."""
        for number, example in enumerate(self.dataset.examples):
            for resolution in range(len(example.resize_crops)):
                for variation in range(num_variations(self.dataset.concepts[example.concept])):
                    yield self._version(number, resolution, variation, 0)

    def first(self) -> Iterator[ImageVersion]:
        """Yield the version that each image has in the first epoch at each of its resolutions."""
        for number, example in enumerate(self.dataset.examples):
            for resolution in range(len(example.resize_crops)):
                yield self._version(number, resolution, 0, 0)

    def _version(self, number: int, resolution: int, variation: int, repeat: int) -> ImageVersion:
        example = self.dataset.examples[number]
        concept = self.dataset.concepts[example.concept]
        resize_crop = example.resize_crops[resolution]
        size = Size(example.image.width_px, example.image.height_px)
        purpose = f"image {resize_crop.bucket} {example.name}"
        seed = derive_seed(self.run_seed if concept.seed is None else concept.seed, purpose, variation, repeat)
        recipe = draw_recipe(
            concept.image,
            size=size,
            resize_crop=resize_crop,
            mask_box=example.mask_box,
            seed=seed,
            background=example.background,
        )
        return ImageVersion(number, resolution, variation, recipe, SizeConditioning.of(size, recipe.geometry))


def num_variations(concept: ConceptFacts) -> int:
    """Return how many versions of each image of a concept are cached: one if they would all be the same."""
    return concept.image_variations if is_random(concept.image) else 1
