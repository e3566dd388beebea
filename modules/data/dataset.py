"""The dataset of a run: the images of all enabled concepts, their sizes, and the plan of every epoch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

from modules.data.buckets import BucketRules, ResizeCrop, Size
from modules.data.cache.image_index import ImageIndex
from modules.data.captions.drawing import cached_texts
from modules.data.captions.operations import NO_CHANGES, CaptionRules
from modules.data.captions.rules import caption_rules
from modules.data.concept import Concept, DatasetKind, Kind
from modules.data.example import NO_COMPANIONS, Assignment, Example, WantedCompanions, prompt_example
from modules.data.image_settings import ImageChanges
from modules.data.images import BrokenImageError
from modules.data.inputs import REFERENCES
from modules.data.listing import SkippedEntry
from modules.data.order import ConceptRepeats, sizes_of_epoch
from modules.data.pairs import fingerprint_of_source, scan_source
from modules.data.prompts import scan_prompts
from modules.data.references import ReferenceFit, batch_shapes
from modules.data.scan import Scan, Watch, ignore_progress, never_stop, without_excluded
from modules.data.stored_examples import StoredExamples
from modules.system.problem import agree, count
from modules.system.seeds import derive_seed


@dataclass(frozen=True, slots=True)
class ConceptFacts:
    """The values of a concept that matter once its images are scanned.

    `samples_per_epoch` is None where the repeats set the number of samples. `seed` is None where the run's applies.
    `draws_masks`: images without a mask get a random inpainting mask, another one for each version.
    """

    name: str
    repeats: float
    loss_weight: float
    first_example: int
    num_examples: int
    kind: Kind = "training"
    samples_per_epoch: int | None = None
    seed: int | None = None
    image: ImageChanges = field(default_factory=ImageChanges)
    image_variations: int = 1
    captions: CaptionRules = NO_CHANGES
    draws_masks: bool = False


ScanOf = Callable[[Concept], Scan | None]
_MATCHED = ("training", "prompts")  # the kinds whose samples regularization concepts match


@dataclass(frozen=True, slots=True)
class Dataset:
    """All examples of one concept type. The examples of a concept are contiguous."""

    examples: Sequence[Example]
    concepts: tuple[ConceptFacts, ...]
    num_resolutions: int
    skipped: tuple[SkippedEntry, ...] = ()
    buckets: Sequence[tuple[Size, ...]] = ()
    wrong_settings: tuple[tuple[int, SkippedEntry], ...] = ()
    """Those of `skipped` that a setting of their concept causes, with the number of the concept."""
    fit: ReferenceFit | None = None
    """How reference images are brought to their size; None for models without any."""

    @property
    def has_pairs(self) -> bool:
        """Whether its examples are pairs: all of them, because a method learns from pairs or from images."""
        return bool(self.examples) and all(e.image.rejected is not None for e in self.examples)

    @property
    def bucket_counts(self) -> dict[Size, int]:
        """The number of examples that are trained at each size, the most frequent first.

        An example counts once at a size that it has at several resolutions.
        """
        shared = {id(sizes): sizes for sizes in self.buckets}  # a few, which most examples share
        counts = Counter[Size]()
        for number, num_examples in Counter(map(id, self.buckets)).items():
            counts.update(dict.fromkeys(shared[number], num_examples))
        return dict(counts.most_common())

    def samples_by_size(self, run_seed: int) -> Counter[Size]:
        """Return the number of samples of the first epoch at each size."""
        repeats = concept_repeats_of(self.concepts, run_seed=run_seed)
        return sizes_of_epoch(repeats, self.buckets, num_resolutions=self.num_resolutions, epoch=0)

    @property
    def batch_shapes(self) -> Sequence[tuple[Size, ...]]:
        """The shapes of the examples by resolution: a batch holds examples of one shape.

        They are the buckets' sizes, and with reference images also the sizes of those.
        """
        if self.fit is None:
            return self.buckets
        return batch_shapes(self.buckets, map(_reference_files, self.examples), self.fit)

    def texts(self, example: Example, *, run_seed: int) -> Iterable[str]:
        """Return the texts that are encoded for an example, apart from the empty one, where captions are cached."""
        rules = self.concepts[example.concept].captions
        return cached_texts(example.image.captions, rules, name=example.image.file_name, run_seed=run_seed)

    def longest_texts(self, example: Example, *, run_seed: int) -> Iterable[str]:
        """Return the texts of an example as long as they get: one variation of each caption, without tag dropout."""
        rules = self.concepts[example.concept].captions
        if rules.drop_probability is not None or rules.variations != 1:
            rules = replace(rules, drop_probability=None, variations=1)
        return cached_texts(example.image.captions, rules, name=example.image.file_name, run_seed=run_seed)

    def with_stored(self, examples: StoredExamples) -> Dataset:
        """Return the dataset with its examples in a mapped file."""
        return replace(self, examples=examples, buckets=_buckets_of(examples.resize_crops))

    def each_once(self) -> Dataset:
        """Return the dataset with epochs that use each example once."""
        concepts = tuple(replace(c, repeats=1.0, samples_per_epoch=None) for c in self.concepts)
        return replace(self, concepts=concepts)

    def without(self, broken: frozenset[int]) -> Dataset:
        """Return the dataset without the examples at these indices, renumbered."""
        kept = [e for i, e in enumerate(self.examples) if i not in broken]
        left = _assemble(kept, self.concepts, self.num_resolutions, self.skipped)
        return replace(left, wrong_settings=self.wrong_settings, fit=self.fit)


def build_dataset(
    concepts: Sequence[tuple[Concept, Path]],
    kind: DatasetKind,
    rules: BucketRules,
    wanted: WantedCompanions = NO_COMPANIONS,
    *,
    watch: Watch = ignore_progress,
    scan_of: ScanOf | None = None,
) -> Dataset:
    """Scan the enabled concepts of one type (each with its absolute folder) and assign every image to a bucket.

    A concept with fewer resolutions than another repeats them, so that all have the same number. `watch` is
    passed to each scan (`scan_source`); `scan_of` returns scans that are known already. Raises OSError where a
    folder cannot be listed.
    """
    active = [(c, folder) for c, folder in concepts if c.enabled and c.dataset_kind == kind]
    sizes = {c.image.resolution_px: rules.sizes(c.image.resolution_px) for c, _ in active}
    num_resolutions = math.lcm(*map(len, sizes.values())) if sizes else len(rules.sizes())
    examples: list[Example] = []
    facts: list[ConceptFacts] = []
    skipped: list[SkippedEntry] = []
    wrong_settings: list[tuple[int, SkippedEntry]] = []
    for concept, folder in active:
        at_resolutions = sizes[concept.image.resolution_px]
        at_resolutions *= num_resolutions // len(at_resolutions)
        known = scan_of(concept) if scan_of is not None else None
        scan = known if known is not None else scan_concept(concept, folder, watch=watch)
        skipped += scan.skipped
        if scan.excluded:
            are = agree(len(scan.excluded), "is")
            reason = f"{count(len(scan.excluded), 'image')} {are} excluded by the concept"
            skipped.append(SkippedEntry(folder, reason, is_part=True, is_normal=True))
        wrong_settings += [(len(facts), s) for s in scan.skipped if s.setting]
        if not concept.has_images:
            prompt_sizes = rules.prompt_sizes(concept.image.resolution_px)
            prompt_sizes *= num_resolutions // len(prompt_sizes)
            examples += [prompt_example(p, len(facts), folder, prompt_sizes) for p in scan.images]
            facts.append(_facts_of(concept, concept.name or folder.name, draws_masks=False))
            continue
        assign = Assignment(len(facts), concept, folder, rules, at_resolutions, wanted)
        for image in scan.images:
            try:
                examples.append(assign.example(image))
            except BrokenImageError as error:
                skipped.append(SkippedEntry(image.path, f"its companion cannot be used: {error}"))
            except ValueError as error:
                skipped.append(SkippedEntry(image.path, str(error), is_too_small=True))
        missing = assign.missing_columns()
        skipped += missing
        wrong_settings += [(len(facts), entry) for entry in missing]
        facts.append(_facts_of(concept, concept.name or folder.name, draws_masks=wanted.draws_masks))
    dataset = _assemble(examples, facts, num_resolutions, tuple(skipped))
    return replace(dataset, wrong_settings=tuple(wrong_settings), fit=next((i.fit for i in wanted.references), None))


def scan_concept(
    concept: Concept,
    source: Path,
    *,
    index: ImageIndex | None = None,
    watch: Watch = ignore_progress,
    check: Callable[[], None] = never_stop,
) -> Scan:
    """Return the images, pairs or prompts of a concept's source, without those it excludes.

    `check` is called for each folder that is listed, and may raise to stop. Raises OSError for an unreadable source.
    """
    origin, include_subfolders = concept.caption_origin, concept.include_subfolders
    is_of_images = concept.has_images and not concept.holds_pairs
    fingerprint = "" if is_of_images else fingerprint_of_concept(concept, source)  # a scan of images makes it itself
    if concept.has_images:
        scan = scan_source(
            source,
            include_subfolders=include_subfolders,
            captions=origin,
            holds_pairs=concept.holds_pairs,
            index=index,
            watch=watch,
            check=check,
        )
        if names := concept.excluded_names:
            scan = without_excluded(scan, source, names)
    else:
        scan = scan_prompts(source, include_subfolders=include_subfolders, columns=origin.columns, watch=watch)
    return replace(scan, fingerprint=fingerprint) if fingerprint else scan


def fingerprint_of_concept(concept: Concept, source: Path) -> str:
    """Return a hash of the paths, sizes and dates of the files of a concept's source, as its scan has it.

    Raises OSError for an unreadable source.
    """
    return fingerprint_of_source(source, include_subfolders=concept.include_subfolders, holds_pairs=concept.holds_pairs)


def _facts_of(concept: Concept, name: str, *, draws_masks: bool) -> ConceptFacts:
    return ConceptFacts(
        name,
        concept.repeats,
        concept.loss_weight,
        0,
        0,
        kind=concept.kind,
        samples_per_epoch=concept.samples_per_epoch if concept.balancing == "samples" else None,
        seed=concept.seed,
        image=concept.image if concept.has_images else ImageChanges(),
        image_variations=1 if concept.dataset_kind == "validation" else concept.image_variations,
        captions=caption_rules(concept.text, variations=concept.text_variations, seed=concept.seed),
        draws_masks=draws_masks,
    )


def _assemble(
    examples: Sequence[Example], facts: Sequence[ConceptFacts], num_resolutions: int, skipped: tuple[SkippedEntry, ...]
) -> Dataset:
    counts = Counter(e.concept for e in examples)
    numbered, first = [], 0
    for index, fact in enumerate(facts):
        numbered.append(replace(fact, first_example=first, num_examples=counts[index]))
        first += counts[index]
    return Dataset(
        tuple(examples), tuple(numbered), num_resolutions, skipped, _buckets_of(e.resize_crops for e in examples)
    )


def _reference_files(example: Example) -> tuple[Size, tuple[Size, ...]]:
    """Return the sizes of an example's image and of the files of its reference images."""
    files = tuple(example.input_files[name].size for name in REFERENCES if name in example.input_files)
    return example.image.size, files


def _buckets_of(crops: Iterable[tuple[ResizeCrop, ...]]) -> tuple[tuple[Size, ...], ...]:
    """Return the sizes of examples from their crops. Examples hold these, and most share them."""
    known: dict[int, tuple[Size, ...]] = {}
    return tuple(known.get(id(c)) or known.setdefault(id(c), tuple(p.bucket for p in c)) for c in crops)


def concept_repeats_of(concepts: Sequence[ConceptFacts], *, run_seed: int) -> list[ConceptRepeats]:
    """Return how often an epoch uses the images of each concept.

    Regularization concepts have as many samples per epoch as the training and prompts concepts together, shared among
    them by their images times their repeats, unless their number is set. Their images and the images of concepts
    balanced by samples take turns in an order that is shuffled once.
    """
    plain = [ConceptRepeats(c.first_example, c.num_examples, c.repeats) for c in concepts]
    is_matched = [c.kind == "regularization" and c.samples_per_epoch is None for c in concepts]
    given = [Fraction(c.samples_per_epoch) if c.samples_per_epoch is not None else None for c in concepts]
    uses = [
        p.exact_repeats * p.num_examples if g is None else g if p.num_examples else Fraction(0)
        for p, g in zip(plain, given, strict=True)
    ]
    to_match = sum((u for u, c in zip(uses, concepts, strict=True) if c.kind in _MATCHED), Fraction(0))
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
