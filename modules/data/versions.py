"""The versions of a dataset's images: which draw of the augmentations each use of an image gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from modules.data.cache.version_keys import VersionKeys
from modules.data.conditioning import SizeConditioning
from modules.data.dataset import ConceptFacts, Dataset, concept_repeats_of
from modules.data.example import Example
from modules.data.image_settings import is_random
from modules.data.order import ConceptRepeats, uses_of_size_before
from modules.data.samples import SampleIndex
from modules.data.source_image import SourceImage
from modules.data.transforms.geometry import fit_like
from modules.data.transforms.recipe import Recipe, draw_recipe
from modules.system.seeds import derive_seed

_MAX_REMEMBERED = 10_000  # about a kilobyte each


@dataclass(frozen=True, slots=True)
class ImageVersion:
    """One version of an image: at one of its resolutions, with one draw of its augmentations, made from `seed`."""

    example: int
    resolution: int
    variation: int
    recipe: Recipe
    size_conditioning: SizeConditioning
    seed: int

    @property
    def place(self) -> tuple[int, int, int]:
        """The example, the resolution and the variation, which identify it among the cached versions."""
        return self.example, self.resolution, self.variation


@dataclass(frozen=True, eq=False)
class ImageVersions:
    """The versions of all images of a dataset: a function of the seed, the image's name, its bucket and the variation.

    The seed is the concept's, or the run's where it has none. The name is the file's path within the concept's folder,
    so adding an image changes no other. Cached, the uses of an image in a bucket go through its variations in turn;
    otherwise each use gets a new draw.
    """

    dataset: Dataset
    run_seed: int
    is_cached: bool

    def of(self, sample_index: SampleIndex) -> ImageVersion:
        """Return the version of its image that a sample uses."""
        if self.is_cached:
            variation = self.variation_of(sample_index)
            return self._cached_version(sample_index.example, sample_index.resolution, variation)
        return self._version(sample_index.example, sample_index.resolution, sample_index.epoch, sample_index.repeat)

    @cached_property
    def _cached_version(self) -> Callable[[int, int, int], ImageVersion]:
        """A version by its place, of which the newest are remembered: each epoch uses the same ones again."""
        return lru_cache(_MAX_REMEMBERED)(
            lambda number, resolution, variation: self._version(number, resolution, variation, 0)
        )

    def variation_of(self, sample_index: SampleIndex) -> int:
        """Return the cached variation of its image that a sample uses.

        It is the number of the image's earlier uses in the same bucket, modulo the variations. The epoch's number would
        leave variations unused where resolutions or fractional repeats take turns at the same pace.
        """
        number = sample_index.example
        concept = self.dataset.examples[number].concept
        count = self._num_variations[concept]
        if count == 1:
            return 0
        sizes = self.dataset.buckets[number]
        use = self._concept_repeats[concept].uses_before(number, sample_index.epoch) + sample_index.repeat
        return uses_of_size_before(sizes, sizes[sample_index.resolution], example=number, use=use) % count

    @cached_property
    def _num_variations(self) -> list[int]:
        return [num_variations(concept) for concept in self.dataset.concepts]

    @cached_property
    def _concept_repeats(self) -> list[ConceptRepeats]:
        return concept_repeats_of(self.dataset.concepts, run_seed=self.run_seed)

    def all_versions(self) -> Iterator[ImageVersion]:
        """Yield every version that a cached run can use, by example, resolution and variation."""
        for number in range(len(self.dataset.examples)):
            yield from self.versions_of(number)

    def versions_of(self, number: int) -> Iterator[ImageVersion]:
        """Yield every version of an example that a cached run can use, by resolution and variation."""
        example = self.dataset.examples[number]
        for resolution in range(len(example.resize_crops)):
            for variation in range(self._num_variations[example.concept]):
                yield self._version(number, resolution, variation, 0)

    def share_recipe(self, example: Example) -> bool:
        """Return whether all examples with an example's concept, size and transparency have the same recipes."""
        return self._share_recipe[example.concept] and example.mask_box is None

    @cached_property
    def _share_recipe(self) -> list[bool]:
        return [not is_random(concept.image) for concept in self.dataset.concepts]

    def no_keys(self) -> VersionKeys:
        """Return the keys of all these versions before any is set."""
        of_concepts = zip(self.dataset.concepts, self._num_variations, strict=True)
        counts = [count for concept, count in of_concepts for _ in range(concept.num_examples)]
        return VersionKeys(counts, num_resolutions=self.dataset.num_resolutions)

    def first_versions(self) -> Iterator[ImageVersion]:
        """Yield the version that each image has in the first epoch at each of its resolutions."""
        for number, example in enumerate(self.dataset.examples):
            for resolution in range(len(example.resize_crops)):
                yield self._version(number, resolution, 0, 0)

    def _version(self, number: int, resolution: int, variation: int, repeat: int) -> ImageVersion:
        example = self.dataset.examples[number]
        concept = self.dataset.concepts[example.concept]
        resize_crop = example.resize_crops[resolution]
        has_image = example.image.has_image  # a prompt's image has the same size at each resolution as its bucket
        size = example.image.size if has_image else resize_crop.bucket
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
        return ImageVersion(number, resolution, variation, recipe, SizeConditioning.of(size, recipe.geometry), seed)


def num_variations(concept: ConceptFacts) -> int:
    """Return how many versions of each image of a concept are cached: one if they would all be the same."""
    return concept.image_variations if is_random(concept.image) or concept.draws_masks else 1


@dataclass(frozen=True, eq=False)
class RejectedVersions:
    """The versions of the rejected images: the draws of the chosen images of `versions`, and their size conditioning.

    A rejected image of another size is fitted to its chosen image (`fit_like`).
    """

    versions: ImageVersions

    @cached_property
    def dataset(self) -> Dataset:
        """The same examples with their rejected images."""
        chosen = self.versions.dataset
        examples = tuple(
            replace(e, image=rejected_image(e.image), background=e.rejected_background, place=e.name)
            for e in chosen.examples
        )
        return replace(chosen, examples=examples)

    def of(self, version: ImageVersion) -> ImageVersion:
        """Return the version of the rejected image that belongs to one of the chosen image."""
        example = self.versions.dataset.examples[version.example]
        chosen, rejected = example.image, rejected_image(example.image)
        geometry = fit_like(
            version.recipe.geometry,
            chosen.size,
            rejected.size,
        )
        recipe = replace(version.recipe, geometry=geometry, background=example.rejected_background)
        return replace(version, recipe=recipe)

    def all_versions(self) -> Iterator[ImageVersion]:
        """Yield every version that a cached run can use, by example, resolution and variation."""
        return map(self.of, self.versions.all_versions())

    def versions_of(self, number: int) -> Iterator[ImageVersion]:
        """Yield every version of an example that a cached run can use, by resolution and variation."""
        return map(self.of, self.versions.versions_of(number))

    def share_recipe(self, example: Example) -> bool:
        """Return False: the recipe of a rejected image also depends on its chosen image."""
        return False

    def no_keys(self) -> VersionKeys:
        """Return the keys of all these versions before any is set."""
        return self.versions.no_keys()


def rejected_image(chosen: SourceImage) -> SourceImage:
    """Return the rejected image of a chosen one. Raises ValueError for an image that is not of a pair."""
    if chosen.rejected is None:
        raise ValueError(f"{chosen.path} has no rejected image.")
    return chosen.rejected
