"""The dataset of a run: the images of all enabled concepts, their sizes, and the plan of every epoch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from modules.data.buckets import ResizeCrop, Size, bucket_sizes, resize_crop_for
from modules.data.cache.stat_index import StatIndex
from modules.data.captions.drawing import cached_texts
from modules.data.captions.operations import NO_CHANGES, CaptionRules
from modules.data.captions.rules import caption_rules
from modules.data.concept import Concept, DatasetKind, Kind
from modules.data.decode import WHITE, Rgb, colour_of
from modules.data.listing import Skipped
from modules.data.order import (
    AccumulationGroup,
    ConceptRepeats,
    SampleIndex,
    groups_of_epoch,
    period_of_epochs,
    sample_indices_of_epoch,
    sizes_of_epoch,
    uses_before,
)
from modules.data.scan import SourceImage, Watch, scan_folder, unwatched
from modules.data.size_conditioning import SizeConditioning
from modules.system.seeds import derive_seed


@dataclass(frozen=True, slots=True)
class Example:
    """An image of a concept, with its resize and crop at each resolution.

    `background` is the colour behind its transparent places; None where it has none.
    """

    image: SourceImage
    concept: int
    resize_crops: tuple[ResizeCrop, ...]
    background: Rgb | None = None

    def size_conditioning(self, resolution: int) -> SizeConditioning:
        """Return the size conditioning of the image at one of the resolutions."""
        return SizeConditioning.of(Size(self.image.width_px, self.image.height_px), self.resize_crops[resolution])


@dataclass(frozen=True, slots=True)
class ConceptFacts:
    """The values of a concept that matter once its images are scanned.

    `samples_per_epoch` is None where the repeats set the number of samples. `seed` is None where the run's applies.
    """

    name: str
    repeats: float
    loss_weight: float
    first_example: int
    num_examples: int
    kind: Kind = "training"
    samples_per_epoch: int | None = None
    seed: int | None = None
    captions: CaptionRules = NO_CHANGES


@dataclass(frozen=True, slots=True)
class BucketRules:
    """How bucket sizes are chosen. A fixed size is the only one, rounded down to a multiple of the bucket step."""

    resolutions_px: tuple[int, ...]
    step_px: int
    max_aspect_ratio: float
    is_bucketing: bool
    fixed: Size | None = None

    def sizes(self) -> tuple[tuple[Size, ...], ...]:
        """Return the bucket sizes at each resolution."""
        if self.fixed is not None:
            sides_px = (self.fixed.width_px, self.fixed.height_px)
            return ((Size(*(max(self.step_px, side // self.step_px * self.step_px) for side in sides_px)),),)
        return tuple(
            bucket_sizes(
                r, step_px=self.step_px, max_aspect_ratio=self.max_aspect_ratio, is_bucketing=self.is_bucketing
            )
            for r in self.resolutions_px
        )


@dataclass(frozen=True, slots=True)
class Dataset:
    """All examples of one concept type. The examples of a concept are contiguous."""

    examples: tuple[Example, ...]
    concepts: tuple[ConceptFacts, ...]
    num_resolutions: int
    skipped: tuple[Skipped, ...] = ()
    buckets: tuple[tuple[Size, ...], ...] = ()

    @property
    def bucket_counts(self) -> dict[Size, int]:
        """How many examples fall into each size, over all resolutions, the most frequent first."""
        counts = Counter(p.bucket for e in self.examples for p in e.resize_crops)
        return dict(counts.most_common())

    def texts(self, example: Example, *, run_seed: int) -> Iterator[str]:
        """Yield the texts that are encoded for an example, apart from the empty one, where captions are cached."""
        rules = self.concepts[example.concept].captions
        yield from cached_texts(example.image.captions, rules, name=example.image.path.name, run_seed=run_seed)

    def longest_texts(self, example: Example, *, run_seed: int) -> Iterator[str]:
        """Yield the texts of an example as long as they get: one variation of each caption, without tag dropout."""
        rules = replace(self.concepts[example.concept].captions, drop_probability=None, variations=1)
        yield from cached_texts(example.image.captions, rules, name=example.image.path.name, run_seed=run_seed)

    def without(self, broken: frozenset[int]) -> Dataset:
        """Return the dataset without the examples at these indices, renumbered."""
        kept = [e for i, e in enumerate(self.examples) if i not in broken]
        return _assemble(kept, self.concepts, self.num_resolutions, self.skipped)


def build_dataset(
    concepts: Sequence[tuple[Concept, Path]],
    kind: DatasetKind,
    rules: BucketRules,
    *,
    index: StatIndex | None = None,
    watch: Watch = unwatched,
) -> Dataset:
    """Scan the enabled concepts of one type (each with its absolute folder) and assign every image to a bucket.

    `index` and `watch` are those of each scan (`scan_folder`). Raises OSError where a folder cannot be listed.
    """
    sizes = rules.sizes()
    examples: list[Example] = []
    facts: list[ConceptFacts] = []
    skipped: list[Skipped] = []
    for concept, folder in concepts:
        if not concept.enabled or concept.dataset_kind != kind:
            continue
        scan = scan_folder(
            folder,
            include_subfolders=concept.include_subfolders,
            captions=concept.caption_origin,
            index=index,
            watch=watch,
        )
        skipped += scan.skipped
        background = colour_of(concept.background) or WHITE
        for image in scan.images:
            resize_crops = tuple(resize_crop_for(image.width_px, image.height_px, s) for s in sizes)
            examples.append(Example(image, len(facts), resize_crops, background if image.is_transparent else None))
        facts.append(_facts_of(concept, concept.name or folder.name))
    return _assemble(examples, facts, len(sizes), tuple(skipped))


def _facts_of(concept: Concept, name: str) -> ConceptFacts:
    return ConceptFacts(
        name,
        concept.repeats,
        concept.loss_weight,
        0,
        0,
        kind=concept.kind,
        samples_per_epoch=concept.samples_per_epoch if concept.balancing == "samples" else None,
        seed=concept.seed,
        captions=caption_rules(concept.text, variations=concept.text_variations, seed=concept.seed),
    )


def _assemble(
    examples: Sequence[Example], facts: Sequence[ConceptFacts], num_resolutions: int, skipped: tuple[Skipped, ...]
) -> Dataset:
    counts = Counter(e.concept for e in examples)
    numbered, first = [], 0
    for index, fact in enumerate(facts):
        numbered.append(replace(fact, first_example=first, num_examples=counts[index]))
        first += counts[index]
    buckets = tuple(tuple(p.bucket for p in e.resize_crops) for e in examples)
    return Dataset(tuple(examples), tuple(numbered), num_resolutions, skipped, buckets)


class EpochPlans:
    """The optimizer steps of every epoch of a run, computed on demand.

    Each accumulation group becomes `steps_per_group` steps: one, unless the method runs inner epochs over it.
    """

    def __init__(
        self, dataset: Dataset, *, batch_size: int, accumulation_steps: int, run_seed: int, steps_per_group: int = 1
    ) -> None:
        self.steps_per_group = steps_per_group
        self._dataset = dataset
        self._batch_size = batch_size
        self._accumulation_steps = accumulation_steps
        self._run_seed = run_seed
        self._newest: tuple[int, tuple[AccumulationGroup, ...]] = (-1, ())
        self._newest_uses: tuple[int, Mapping[int, int]] = (-1, {})
        self._known_steps: list[int] = []

    def accumulation_groups(self, epoch: int) -> tuple[AccumulationGroup, ...]:
        """Return the accumulation groups of an epoch (counted from 0)."""
        if self._newest[0] != epoch:
            self._newest = (
                epoch,
                groups_of_epoch(
                    self._sample_indices(epoch),
                    self._dataset.buckets,
                    batch_size=self._batch_size,
                    accumulation_steps=self._accumulation_steps,
                    run_seed=self._run_seed,
                    epoch=epoch,
                ),
            )
        return self._newest[1]

    def uses_before(self, epoch: int) -> Mapping[int, int]:
        """Return how often each example is used before an epoch."""
        if self._newest_uses[0] != epoch:
            self._newest_uses = (epoch, uses_before(self._concept_repeats(), epoch))
        return self._newest_uses[1]

    def num_steps(self, epoch: int) -> int:
        """Return how many optimizer steps an epoch has, without computing its order."""
        counts = sizes_of_epoch(
            self._concept_repeats(), self._dataset.buckets, num_resolutions=self._dataset.num_resolutions, epoch=epoch
        )
        num_batches = sum(math.ceil(n / self._batch_size) for n in counts.values())
        return math.ceil(num_batches / self._accumulation_steps) * self.steps_per_group

    def total_steps(self, epochs: int) -> int:
        """Return how many optimizer steps that many epochs have."""
        steps = self._steps_until_they_recur(epochs)
        rounds, rest = divmod(epochs, len(steps) or 1)
        return rounds * sum(steps) + sum(steps[:rest])

    def has_empty_epoch(self, epochs: int) -> bool:
        """Return whether one of the first `epochs` epochs has no samples: few images with repeats far below 1."""
        return 0 in self._steps_until_they_recur(epochs)

    def _steps_until_they_recur(self, epochs: int) -> list[int]:
        period = min(epochs, period_of_epochs(self._concept_repeats(), num_resolutions=self._dataset.num_resolutions))
        self._known_steps += [self.num_steps(e) for e in range(len(self._known_steps), period)]
        return self._known_steps[:period]

    def _sample_indices(self, epoch: int) -> list[SampleIndex]:
        return sample_indices_of_epoch(
            self._concept_repeats(), num_resolutions=self._dataset.num_resolutions, epoch=epoch
        )

    def _concept_repeats(self) -> list[ConceptRepeats]:
        return concept_repeats_of(self._dataset.concepts, run_seed=self._run_seed)


def concept_repeats_of(concepts: Sequence[ConceptFacts], *, run_seed: int) -> list[ConceptRepeats]:
    """Return how often an epoch uses the images of each concept.

    Regularization concepts have as many samples per epoch as the training concepts together, shared among them by
    their images times their repeats, unless their number is set. Their images and those of concepts balanced by
    samples take turns in an order that is shuffled once.
    """
    plain = [ConceptRepeats(c.first_example, c.num_examples, c.repeats) for c in concepts]
    is_matched = [c.kind == "regularization" and c.samples_per_epoch is None for c in concepts]
    given = [Fraction(c.samples_per_epoch) if c.samples_per_epoch is not None else None for c in concepts]
    uses = [
        p.exact_repeats * p.num_examples if g is None else g if p.num_examples else Fraction(0)
        for p, g in zip(plain, given, strict=True)
    ]
    to_match = sum((u for u, c in zip(uses, concepts, strict=True) if c.kind == "training"), Fraction(0))
    shares = sum((u for u, m in zip(uses, is_matched, strict=True) if m), Fraction(0))
    result = []
    for index, (concept, repeats, use) in enumerate(zip(concepts, plain, uses, strict=True)):
        if is_matched[index]:
            num_samples = to_match * use / shares if shares else Fraction(0)
        elif given[index] is not None:
            num_samples = use
        else:
            result.append(repeats)
            continue
        seed = derive_seed(run_seed if concept.seed is None else concept.seed, "concept", index)
        result.append(replace(repeats, num_samples=num_samples, seed=seed))
    return result
