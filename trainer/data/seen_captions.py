"""The captions that a text encoder reads together with reference images: which images, and how they are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from modules.data.cache.digests import DigestIndex
from modules.data.cache.inputs import ConditioningImage
from modules.data.cache.key import conditioning_image_key
from modules.data.captions.seen import ReadCaption, SeenCaption
from modules.data.inputs import ModelInput
from modules.data.references import CaptionImages, ReferenceSizes
from modules.data.transforms.geometry import Geometry
from modules.data.transforms.recipe import Recipe
from modules.data.versions import ImageVersion, ImageVersions
from trainer.data.inputs import files_of


@dataclass(frozen=True, eq=False)
class SeenReferences:
    """The reference images of a dataset as its text encoder sees them with a caption: whole, at one of its `sizes`.

    They are mirrored with their image, but neither cropped, rotated nor recoloured with it: so a caption has one entry
    in the cache, or two. `digests` are the files' digests by input and example, or without a cache their paths.
    """

    versions: ImageVersions
    sizes: ReferenceSizes
    digests: Mapping[str, Mapping[int, str]]

    def read(self, caption: str, version: ImageVersion) -> ReadCaption:
        """Return the caption of a version of an image with its reference images."""
        return self._read(caption, version.example, is_flipped=version.recipe.geometry.is_flipped)

    def all_of(self, captions: Iterable[str], number: int) -> Iterator[ReadCaption]:
        """Yield how the captions of an example are read in any of its versions."""
        flips = self._flips_of(number)
        for caption in captions:
            yield from (self._read(caption, number, is_flipped=is_flipped) for is_flipped in flips)

    def _flips_of(self, number: int) -> Sequence[bool]:
        if self.versions.is_cached:
            return sorted({version.recipe.geometry.is_flipped for version in self.versions.versions_of(number)})
        concept = self.versions.dataset.concepts[self.versions.dataset.examples[number].concept]
        return {"off": (False,), "always": (True,)}.get(concept.image.flip, (False, True))

    def _read(self, caption: str, number: int, *, is_flipped: bool) -> ReadCaption:
        keys, images = list[str](), list[ConditioningImage]()
        for name, digests in self.digests.items():
            file = self.versions.dataset.examples[number].input_files.get(name)
            if file is None:
                continue
            recipe = Recipe(Geometry(self.sizes.way_of(file.size), is_flipped=is_flipped))
            width_px, height_px = file.size.sides_px
            keys.append(
                conditioning_image_key(
                    digest=digests[number], width_px=width_px, height_px=height_px, recipe=recipe, encoder=""
                )
            )
            images.append(ConditioningImage(file.path, recipe, file.size))
        return SeenCaption(caption, tuple(keys), tuple(images)) if images else caption


def seen_references(
    versions: ImageVersions,
    inputs: Sequence[ModelInput],
    seen: CaptionImages | None,
    digests: DigestIndex | None,
    *,
    verify: bool,
    check: Callable[[], None],
    threads: int = 1,
) -> SeenReferences | None:
    """Return the reference images among a dataset's `inputs` as the text encoder sees them; None if it sees none.

    All files are read for their digests, `threads` ahead; none without an index, as where no caption is cached. `check`
    is called for each and may raise to stop.
    """
    if seen is None:
        return None
    captions: dict[str, dict[int, str]] = {}
    for record in (i for i in inputs if i.reference):
        files, of_input = files_of(record, versions), dict[int, str]()
        if digests is None:
            captions[record.name] = {number: str(file.path) for number, file in files.items()}
            continue
        with closing(digests.digests(files.values(), threads=threads, verify=verify)) as read:
            for number, digest in zip(files, read, strict=True):
                check()
                of_input[number] = digest
        captions[record.name] = of_input
    return SeenReferences(versions, seen.sizes, captions)
