"""The dataset doctor on a config: its images scanned, decoded by several threads, and checked.

Nothing is written, not even to the caches.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from modules.config.schema import Config
from modules.data.buckets import BucketRules
from modules.data.concept import Concept, DatasetKind
from modules.data.dataset import Dataset, concept_repeats_of
from modules.data.datasets import Datasets, build_datasets
from modules.data.decode import Rgb
from modules.data.doctor.finding import Examination, ExaminedConcept, ExaminedImage, Finding, LongCaption, SkippedFile
from modules.data.doctor.measure import Measurement, measure
from modules.data.doctor.page import MAX_FILES_SHOWN, Thumbnails, thumbnail
from modules.data.doctor.report import find_all
from modules.data.images import BrokenImageError
from modules.data.listing import SUFFIXES
from modules.families.parts.prompt_weights import without_weights
from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason
from modules.system.paths import from_root
from trainer.data.datasets import dataset_settings
from trainer.data.hub_datasets import with_local_folders
from trainer.preflight.captions import counting_tokenizer, problems_of_caption_settings, tokens_read
from trainer.preflight.images import problems_of_concept_folders
from trainer.preflight.missing_captions import problems_of_captions_files
from trainer.preflight.report import Progress, no_progress

_MAX_THREADS = 8  # more need memory for decoded images, and the disk is the limit
_SHARED_CAPTIONS = ("one_file", "fixed_text")
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The findings of the doctor, and the number of images it looked at."""

    findings: tuple[Finding, ...]
    num_images: int
    num_validation_images: int
    num_prompts: int = 0

    @property
    def has_errors(self) -> bool:
        """Whether a finding is an error: a file that cannot be read."""
        return any(f.severity == "error" for f in self.findings)


def examine(config: Config, progress: Progress = no_progress) -> DoctorReport:
    """Return the probable problems of the images and captions of a config. Nothing is changed.

    Raises DarkroomError if a concept's folder or its caption settings are wrong; whatever `progress` raises stops it.
    """
    examined = look_at(config, progress)
    num_validation = sum(examined.is_validation(i) for i in examined.images)
    num_prompts = sum(not i.example.image.has_image for i in examined.images)
    num_images = len(examined.images) - num_validation - num_prompts
    findings = find_all(examined, partial(progress, "checking"))
    return DoctorReport(findings, num_images, num_validation, num_prompts)


def look_at(config: Config, progress: Progress = no_progress) -> Examination:
    """Return the images of a config for the checks, each decoded once."""
    config = with_local_folders(config)
    problems = [
        *(p for _, p in problems_of_concept_folders(config)),
        *problems_of_caption_settings(config),
        *problems_of_captions_files(config),
    ]
    if problems:
        raise DarkroomError(problems[0].message, advice=problems[0].advice)
    try:
        datasets = build_datasets(dataset_settings(config), None, partial(progress, "scanning"))
    except OSError as error:
        raise DarkroomError(
            f"A folder cannot be read: {plain_reason(error, names_file=True)}.",
            advice="Check its path and permissions.",
        ) from error
    concepts, images = _concepts_and_images(config, datasets)
    skipped_entries = (*datasets.training.skipped, *datasets.validation.skipped)
    skipped = sorted({s.path: s for s in skipped_entries if not s.is_normal}.items())
    wanted = dict.fromkeys(file for i in images for file in _files(i))
    wanted |= dict.fromkeys((path, None) for path, _ in skipped if path.suffix.lower() in SUFFIXES)
    results = dict(zip(wanted, in_threads(_measure, list(wanted), partial(progress, "examining")), strict=True))
    return Examination(
        concepts,
        tuple(_with_results(i, [results[file] for file in _files(i)]) for i in images),
        tuple(
            SkippedFile(s.path, s.reason, is_image=isinstance(results.get((path, None)), Measurement))
            for path, s in skipped
        ),
        tuple(_long_captions(config, (datasets.training, datasets.validation))),
        dict(datasets.training.samples_by_size(datasets.settings.run_seed)),
        datasets.settings.batch_size,
        datasets.settings.partial_batches,
    )


def thumbnails_of(findings: Iterable[Finding], progress: Progress = no_progress) -> Thumbnails:
    """Return the thumbnails of the images that a page of the findings shows."""
    files = [p for f in findings for p in f.files[:MAX_FILES_SHOWN] if p.suffix.lower() in SUFFIXES]
    unique = list(dict.fromkeys(files))
    thumbnails = in_threads(thumbnail, unique, partial(progress, "drawing thumbnails"))
    return {path: content for path, content in zip(unique, thumbnails, strict=True) if content is not None}


def in_threads(
    work: Callable[[Item], Result], items: Sequence[Item], progress: Callable[[int, int], None]
) -> list[Result]:
    """Return the results of `work` for all items, in their order, from several threads.

    `progress` is called in this thread, at the start and after each result. If it raises, no further item is begun.
    """
    results: list[Result] = []
    with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1), thread_name_prefix="doctor") as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            progress(0, len(items))
            for future in futures:
                results.append(future.result())
                progress(len(results), len(items))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return results


def _measure(wanted: tuple[Path, Rgb | None]) -> Measurement | str:
    """Return the measurements of an image, or the reason why it cannot be decoded."""
    path, background = wanted
    try:
        return measure(path, background)
    except BrokenImageError as error:
        return error.reason


def _files(image: ExaminedImage) -> Iterator[tuple[Path, Rgb | None]]:
    """Yield the file of an image with its background, and for a pair also its rejected image."""
    if not image.example.image.has_image:
        return
    yield image.path, image.example.background
    if image.example.image.rejected is not None:
        yield image.example.image.rejected.path, image.example.rejected_background


def _with_results(image: ExaminedImage, results: Sequence[Measurement | str]) -> ExaminedImage:
    if not results:
        return image
    result, rejected = results[0], results[-1] if len(results) > 1 else None
    broken_rejected = rejected if isinstance(rejected, str) else ""
    if isinstance(result, str):
        return ExaminedImage(image.example, image.concept, broken=result, broken_rejected=broken_rejected)
    return ExaminedImage(image.example, image.concept, result, broken_rejected=broken_rejected)


def _concepts_and_images(
    config: Config, datasets: Datasets
) -> tuple[tuple[ExaminedConcept, ...], tuple[ExaminedImage, ...]]:
    """Return the concepts of both datasets, and their images with the index of their concept among all."""
    concepts: list[ExaminedConcept] = []
    images: list[ExaminedImage] = []
    kinds: tuple[tuple[DatasetKind, Dataset], ...] = (
        ("training", datasets.training),
        ("validation", datasets.validation),
    )
    for kind, dataset in kinds:
        settings = [c for c in config.concepts if c.enabled and c.dataset_kind == kind]
        images += [ExaminedImage(e, len(concepts) + e.concept) for e in dataset.examples]
        concepts += _concepts(settings, dataset, datasets.settings.rules, datasets.settings.run_seed)
    return tuple(concepts), tuple(images)


def _concepts(
    settings: Sequence[Concept], dataset: Dataset, rules: BucketRules, run_seed: int
) -> Iterator[ExaminedConcept]:
    repeats = concept_repeats_of(dataset.concepts, run_seed=run_seed)
    for concept, facts, use in zip(settings, dataset.concepts, repeats, strict=True):
        yield ExaminedConcept(
            facts.name,
            facts.kind,
            from_root(concept.path),
            float(use.exact_repeats),
            has_own_captions=concept.caption_source not in _SHARED_CAPTIONS or not concept.has_images,
            default_captions=concept.caption_origin.default_captions,
            rules=facts.captions,
            sets_samples=facts.samples_per_epoch is not None,
            fixed_sizes=rules.are_fixed(concept.image.resolution_px),
        )


def _long_captions(config: Config, datasets: Sequence[Dataset]) -> Iterator[LongCaption]:
    """Yield the captions of more than one chunk of tokens, each with all of its images."""
    files: dict[str, list[Path]] = defaultdict(list)
    chunk_tokens, truncates = tokens_read(config), config.family.text.truncates
    for dataset in datasets:
        for example in dataset.examples:
            for given in dataset.longest_texts(example, run_seed=config.general.seed):
                text = without_weights(given) if config.model.family.reads_weights else given
                if len(text) > chunk_tokens:  # a token is at least one character
                    files[text].append(example.image.path)
    tokenizer = counting_tokenizer(config) if files else None
    if tokenizer is None:
        return
    lengths = {text: tokenizer.count(text) for text in files}
    for text, paths in files.items():
        if lengths[text] > chunk_tokens:
            unique = tuple(dict.fromkeys(paths))
            yield LongCaption(unique, lengths[text], tokenizer.beyond(text, chunk_tokens), chunk_tokens, truncates)
