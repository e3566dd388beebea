"""The preview of an image as a run trains it: its crop, its pixels after all augmentations, its mask and its caption.

Everything is computed by the functions that the run itself uses, from the same seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from PIL import Image

from modules.config.schema import Config
from modules.config.usage import caption_dropout_of, data_in_use
from modules.data.buckets import Size
from modules.data.captions.drawing import CaptionDropout, DrawnCaption
from modules.data.companions import Companion
from modules.data.concept import Concept
from modules.data.dataset import Dataset, ScanOf, build_dataset
from modules.data.example import Example
from modules.data.inputs import REFERENCES
from modules.data.plans import EpochPlans, caption_of
from modules.data.references import ReferenceFit
from modules.data.samples import SampleIndex
from modules.data.scan import Scan, Watch, ignore_progress
from modules.data.transforms.apply import load_conditioning_image, load_mask, load_pixels
from modules.data.transforms.recipe import Colour, Recipe, plain_recipe, recipe_of_reference
from modules.data.versions import ImageVersions, num_variations
from modules.system.paths import from_root
from trainer.data.datasets import dataset_settings
from trainer.phases import phase_facts

UNMASKED_SHADE = 0.35  # of the brightness, where the mask is black
MAX_USES = 200  # that a preview steps through
_MAX_EPOCHS = 10_000  # searched for them: with few repeats, most epochs use an image never


@dataclass(frozen=True, slots=True)
class ImageUse:
    """One use of an image by a run.

    `corners` are the corners of the crop, in pixels of the upright image of `size`. `pixels` is the image as it is
    trained, with the black area of its mask darkened; None for a prompt. `changes` are the augmentations in words,
    `captions` the captions as they are written, `caption` the one that is trained. `is_dropped`: the empty prompt is
    trained. `variation` counts from 0; `num_variations` is None where every use is augmented anew.
    """

    path: Path
    sample_index: SampleIndex
    size: Size
    bucket: Size
    corners: tuple[tuple[float, float], ...]
    pixels: Image.Image | None
    has_mask: bool
    changes: tuple[str, ...]
    captions: tuple[str, ...]
    caption: str
    is_dropped: bool = False
    variation: int = 0
    num_variations: int | None = None


class ConceptPreview:
    """The images of one concept of a config as a run sees them; the concept counts as enabled."""

    def __init__(
        self, config: Config, number: int, *, scan_of: ScanOf | None = None, watch: Watch = ignore_progress
    ) -> None:
        """Scan the concepts of the same dataset; `scan_of` returns scans that are known already.

        Concepts whose folders cannot be read count as empty. Raises OSError if the folder of this concept cannot be
        read.
        """
        concepts = list(config.concepts)
        chosen = concepts[number] = concepts[number].model_copy(update={"enabled": True})
        config = config.model_copy(update={"concepts": tuple(concepts)})
        settings = dataset_settings(config)
        active = [c for c in settings.concepts if c.dataset_kind == chosen.dataset_kind]
        place = sum(c.enabled and c.dataset_kind == chosen.dataset_kind for c in concepts[:number])
        located = [(c, from_root(c.path)) for c in active]
        is_validation = chosen.dataset_kind == "validation"
        self.dataset: Dataset = build_dataset(
            located,
            chosen.dataset_kind,
            settings.rules,
            settings.wanted,
            watch=watch,
            scan_of=_or_empty(scan_of, besides=active[place]),
        )
        self._facts = self.dataset.concepts[place]
        self._plans: EpochPlans = settings.plans_of(self.dataset, is_validation=is_validation)
        self._run_seed = settings.run_seed
        self._versions = ImageVersions(self.dataset, settings.run_seed, is_cached=data_in_use(config).latent_cache)
        self._draws_anew = not phase_facts(config).has_text_cache
        self._dropout = CaptionDropout() if is_validation else caption_dropout_of(config.data, config.family.name)

    @cached_property
    def examples(self) -> Sequence[Example]:
        """The images of the concept that a run uses."""
        first = self._facts.first_example
        return self.dataset.examples[first : first + self._facts.num_examples]

    def uses(self, image: int) -> list[SampleIndex]:
        """Return the first uses of an image in a run, over as many epochs as needed."""
        if not (self._facts.repeats if self._facts.samples_per_epoch is None else self._facts.samples_per_epoch):
            return []
        return list(islice(self._uses(self._facts.first_example + image), MAX_USES))

    def use(self, sample_index: SampleIndex, *, is_augmented: bool = True) -> ImageUse:
        """Return one use of an image; without `is_augmented`, as it would be without image augmentation.

        Raises BrokenImageError, an OSError, for an image or a mask that cannot be decoded.
        """
        example = self.dataset.examples[sample_index.example]
        size = example.image.size
        version = self._versions.of(sample_index)
        recipe = version.recipe
        if not is_augmented:
            recipe = plain_recipe(example.resize_crops[sample_index.resolution], example.background)
        drawn = self._caption(sample_index)
        return ImageUse(
            example.image.path,
            sample_index,
            size,
            recipe.bucket,
            recipe.geometry.crop_corners(size),
            trained_pixels(example, recipe, self.dataset.fit) if example.image.has_image else None,
            example.mask is not None,
            changes_of(recipe) if example.image.has_image else (),
            example.image.captions,
            drawn.text,
            is_dropped=not drawn.text and bool(example.image.captions),
            variation=version.variation,
            num_variations=num_variations(self._facts) if self._versions.is_cached else None,
        )

    def caption(self, sample_index: SampleIndex) -> str:
        """Return the caption of one use of an image; empty if it is dropped."""
        return self._caption(sample_index).text

    def _caption(self, sample_index: SampleIndex) -> DrawnCaption:
        return caption_of(
            self.dataset,
            self._plans,
            sample_index,
            run_seed=self._run_seed,
            dropout=self._dropout,
            draws_anew=self._draws_anew,
        )

    def _uses(self, number: int) -> Iterator[SampleIndex]:
        for epoch in range(_MAX_EPOCHS):
            yield from self._plans.samples_of(number, epoch)


def trained_pixels(example: Example, recipe: Recipe, fit: ReferenceFit | None) -> Image.Image:
    """Return an image as it is trained, with the black area of its mask darkened.

    Its reference images, brought to their size by `fit`, are at its left. Raises BrokenImageError.
    """
    size = example.image.size
    shown = [
        _reference(example.input_files[name], recipe, size, fit) for name in REFERENCES if name in example.input_files
    ]
    shown.append(_with_mask(Image.fromarray(load_pixels(example.image.path, recipe)), example, recipe, size))
    if len(shown) == 1:
        return shown[0]
    row = Image.new("RGB", (sum(image.width for image in shown), max(image.height for image in shown)))
    left = 0
    for image in shown:
        row.paste(image, (left, 0))
        left += image.width
    return row


def _reference(file: Companion, recipe: Recipe, size: Size, fit: ReferenceFit | None) -> Image.Image:
    own_recipe, resized_to = recipe_of_reference(fit, recipe, file=file.size, image=size)
    return Image.fromarray(load_conditioning_image(file.path, own_recipe, image_size=resized_to, follows_colour=True))


def _with_mask(image: Image.Image, example: Example, recipe: Recipe, size: Size) -> Image.Image:
    if example.mask is None:
        return image
    mask = load_mask(example.mask.path, recipe, image_size=size, is_alpha=example.mask.is_alpha)
    darker = image.point(lambda value: int(value * UNMASKED_SHADE))
    return Image.composite(image, darker, Image.fromarray(mask))


def changes_of(recipe: Recipe) -> tuple[str, ...]:
    """Return the augmentations of a recipe in words: "flipped", "rotated by 3.2°"."""
    geometry, colour = recipe.geometry, recipe.colour
    words = []
    if geometry.is_flipped:
        words.append("flipped")
    if geometry.degrees:
        words.append(f"rotated by {geometry.degrees:.1f}°")
    if geometry.cut is not None:
        words.append("cropped to its mask")
    words += [
        f"{name} × {value:.2f}"
        for name, value in (
            ("brightness", colour.brightness),
            ("contrast", colour.contrast),
            ("saturation", colour.saturation),
        )
        if value != 1.0
    ]
    if colour.hue_degrees != Colour().hue_degrees:
        words.append(f"hue {colour.hue_degrees:+.0f}°")
    if recipe.mask_circle is not None:
        words.append(f"mask circle {recipe.mask_circle:.0%}")
    return tuple(words)


def _or_empty(scan_of: ScanOf | None, *, besides: Concept) -> ScanOf:
    """Return scans that are known, or empty ones for concepts, apart from one, whose folders do not exist."""

    def scan(concept: Concept) -> Scan | None:
        known = scan_of(concept) if scan_of is not None else None
        if known is not None or concept is besides or _is_there(concept.path):
            return known
        return Scan((), ())

    return scan


def _is_there(path: str) -> bool:
    try:
        return bool(path.strip()) and from_root(path).exists()
    except (OSError, ValueError):
        return False
