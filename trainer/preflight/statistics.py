"""The statistics of one concept of a config, with the buckets and the tokenizer of its run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from modules.config.schema import Config
from modules.data.dataset import Dataset, build_dataset
from modules.data.listing import SkippedEntry, walk
from modules.data.scan import Scan
from modules.data.statistics import FileCounts, Statistics, file_counts, statistics_of, tag_counts
from modules.families.parts.prompt_weights import without_weights
from modules.system.paths import from_root
from trainer.data.datasets import dataset_settings
from trainer.preflight.captions import counting_tokenizer, tokens_read
from trainer.preflight.report import Progress, no_progress

_REPORTED_EVERY = 200  # captions


def concept_statistics(
    config: Config, number: int, *, scan: Scan | None = None, progress: Progress = no_progress
) -> Statistics:
    """Return the statistics of the concept at a number of a config, whether it is enabled or not.

    `scan` is the scan of its folder, if there is one already. Raises OSError for an unreadable folder, DarkroomError
    for an unreadable tokenizer; whatever `progress` raises stops it.
    """
    concept = config.concepts[number].model_copy(update={"enabled": True})
    alone = config.model_copy(update={"concepts": (concept,)})
    settings = dataset_settings(alone)
    (concept,) = settings.concepts  # with its local folder
    folder = from_root(concept.path)
    dataset = build_dataset(
        [(concept, folder)],
        concept.dataset_kind,
        settings.rules,
        settings.wanted,
        watch=partial(progress, "scanning"),
        scan_of=lambda _concept: scan,
    )
    images = [e.image for e in dataset.examples]
    skipped: list[SkippedEntry] = []
    files = FileCounts()
    if folder.is_dir():
        there = walk(folder, include_subfolders=concept.include_subfolders, skipped=skipped)
        files = file_counts(there, images, [folder / name for name in concept.excluded_names])
    rules = dataset.concepts[0].captions
    return statistics_of(
        images,
        files,
        dataset.bucket_counts if concept.has_images else {},
        tag_counts(images, delimiter=rules.delimiter, separator=rules.separator),
        texts=_texts(alone, dataset, settings.run_seed),
        count_tokens=_counter(alone, progress, sum(len(i.captions) for i in images)),
        chunk_tokens=tokens_read(alone),
        is_truncated=alone.family.text.truncates,
    )


def _texts(config: Config, dataset: Dataset, run_seed: int) -> list[tuple[str, str]]:
    has_weights = config.model.family.reads_weights
    return [
        (without_weights(text) if has_weights else text, example.image.path.name)
        for example in dataset.examples
        for text in dataset.longest_texts(example, run_seed=run_seed)
    ]


def _counter(config: Config, progress: Progress, total: int) -> Callable[[str], int] | None:
    """Return a function that counts tokens, each text once, and reports its progress; None without a tokenizer."""
    tokenizer = counting_tokenizer(config)
    if tokenizer is None:
        return None
    lengths: dict[str, int] = {}
    done = 0

    def count_tokens(text: str) -> int:
        nonlocal done
        if done % _REPORTED_EVERY == 0:
            progress("counting tokens", min(done, total), total)
        done += 1
        if text not in lengths:
            lengths[text] = tokenizer.count(text)
        return lengths[text]

    return count_tokens
