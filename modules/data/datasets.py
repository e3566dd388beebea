"""The datasets of a run: scanned once, for the preflight check and for the run itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from modules.data.buckets import BucketRules
from modules.data.cache.image_index import ImageIndex
from modules.data.captions.rules import special_tags_file
from modules.data.concept import Concept
from modules.data.dataset import Dataset, build_dataset, fingerprint_of_concept, scan_concept
from modules.data.example import NO_COMPANIONS, WantedCompanions
from modules.data.order import PartialBatches
from modules.data.plans import EpochPlans
from modules.data.scan import Scan, Watch, fingerprint_of_files, fingerprint_of_folder, ignore_progress
from modules.system.paths import from_root


@dataclass(frozen=True, slots=True)
class DatasetSettings:
    """The settings that determine a run's images, their sizes and its steps: its enabled concepts, and numbers.

    Without `reads_images`, of training images only captions and sizes are used. With `reads_pixels`, images are
    delivered as they are, without latents and captions.
    """

    concepts: tuple[Concept, ...]
    rules: BucketRules
    batch_size: int
    accumulation_steps: int
    run_seed: int
    steps_per_group: int = 1
    partial_batches: PartialBatches = "keep"
    wanted: WantedCompanions = NO_COMPANIONS
    reads_images: bool = True
    reads_pixels: bool = False

    @property
    def has_latents(self) -> bool:
        """Whether training images are read, as latents."""
        return self.reads_images and not self.reads_pixels

    def plans_of(self, dataset: Dataset, *, is_validation: bool = False) -> EpochPlans:
        """Return the plan of every epoch over a dataset; one for validation always keeps partial batches."""
        return EpochPlans(
            dataset,
            batch_size=self.batch_size,
            accumulation_steps=self.accumulation_steps,
            run_seed=self.run_seed,
            steps_per_group=self.steps_per_group,
            partial_batches="keep" if is_validation else self.partial_batches,
        )


@dataclass(frozen=True, eq=False)
class Datasets:
    """A run's training and validation datasets, the plan of its epochs, and a fingerprint of the scanned files.

    `index` knows the images of earlier scans, so that unchanged ones are not opened again.
    """

    settings: DatasetSettings
    fingerprint: tuple[str, ...]
    training: Dataset
    validation: Dataset
    plans: EpochPlans
    index: ImageIndex | None = None

    def is_current(self) -> bool:
        """Return whether the files are unchanged: no file is opened, only names, sizes and dates are compared."""
        try:
            return tuple(_fingerprints(self.settings.concepts)) == self.fingerprint
        except OSError:
            return False


def build_datasets(
    settings: DatasetSettings, index: ImageIndex | None = None, watch: Watch = ignore_progress
) -> Datasets:
    """Scan each concept's source once, and assign every image to a bucket. Raises OSError for an unreadable folder.

    `watch` is called during each scan and may raise to stop it.
    """
    others = tuple(_fingerprints_of_others(settings.concepts))  # first: a change during the scan counts as a change
    located = [(concept, from_root(concept.path)) for concept in settings.concepts]
    of_sources: dict[int, str] = {}

    def scan_of(concept: Concept) -> Scan:
        scan = scan_concept(concept, from_root(concept.path), index=index, watch=watch)
        of_sources[id(concept)] = scan.fingerprint
        return scan

    training = build_dataset(located, "training", settings.rules, settings.wanted, scan_of=scan_of)
    validation = build_dataset(located, "validation", settings.rules, settings.wanted, scan_of=scan_of)
    fingerprint = (*(of_sources[id(concept)] for concept in settings.concepts), *others)
    return Datasets(settings, fingerprint, training, validation, settings.plans_of(training), index)


def _fingerprints(concepts: tuple[Concept, ...]) -> Iterator[str]:
    yield from map(fingerprint_of_concept, concepts, (from_root(concept.path) for concept in concepts))
    yield from _fingerprints_of_others(concepts)


def _fingerprints_of_others(concepts: tuple[Concept, ...]) -> Iterator[str]:
    """Yield the fingerprints of what concepts use outside of their sources."""
    for concept in concepts:
        yield fingerprint_of_files(tuple(_other_files(concept)))
        if concept.image.mask_source == "folder" and concept.image.masks_folder:
            yield fingerprint_of_folder(from_root(concept.image.masks_folder), include_subfolders=True)
        for folder in concept.image.conditioning_folders:
            if folder is not None:
                yield fingerprint_of_folder(folder, include_subfolders=True)


def _other_files(concept: Concept) -> Iterator[Path]:
    """Yield the files outside of its folder that a concept's captions depend on."""
    if (captions_file := concept.caption_origin.file) is not None:
        yield captions_file
    if (special_tags := special_tags_file(concept.text)) is not None:
        yield special_tags
