"""The rejected images of a dataset of pairs: each goes exactly the way of its chosen image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from modules.data.buckets import Size
from modules.data.dataset import Dataset
from modules.data.scan import SourceImage
from modules.data.transforms.geometry import fitted_like
from modules.data.versions import ImageVersion, ImageVersions


@dataclass(frozen=True, eq=False)
class RejectedVersions:
    """The versions of the rejected images: the draws of the chosen images of `versions`, and their size conditioning.

    A rejected image of another size is fitted to its chosen image (`fitted_like`).
    """

    versions: ImageVersions

    @cached_property
    def dataset(self) -> Dataset:
        """The same examples with their rejected images."""
        chosen = self.versions.dataset
        examples = tuple(
            replace(e, image=rejected_image(e.image), background=e.rejected_background) for e in chosen.examples
        )
        return replace(chosen, examples=examples)

    def of(self, version: ImageVersion) -> ImageVersion:
        """Return the version of the rejected image that belongs to one of the chosen image."""
        example = self.versions.dataset.examples[version.example]
        chosen, rejected = example.image, rejected_image(example.image)
        geometry = fitted_like(
            version.recipe.geometry,
            Size(chosen.width_px, chosen.height_px),
            Size(rejected.width_px, rejected.height_px),
        )
        recipe = replace(version.recipe, geometry=geometry, background=example.rejected_background)
        return replace(version, recipe=recipe)

    def cached(self) -> Iterator[ImageVersion]:
        """Yield every version that a cached run can use, by example, resolution and variation."""
        return map(self.of, self.versions.cached())


def rejected_image(chosen: SourceImage) -> SourceImage:
    """Return the rejected image of a chosen one. Raises ValueError for an image that is not of a pair."""
    if chosen.rejected is None:
        raise ValueError(f"{chosen.path} has no rejected image.")
    return chosen.rejected
