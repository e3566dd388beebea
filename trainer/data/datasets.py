"""The datasets of a config, for both its check and its run, and whether the check's are still current."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from modules.config.schema import Config
from modules.config.usage import (
    fit_of_references,
    inpaints,
    inputs_of,
    learns_from,
    steps_per_group,
    trains_on_pixels,
)
from modules.data.buckets import BucketRules, Size
from modules.data.datasets import Datasets, DatasetSettings, build_datasets
from modules.data.example import WantedCompanions
from modules.data.scan import Watch, ignore_progress, image_index
from modules.settings.edit import get_path
from modules.system.paths import from_root
from modules.system.problem import count
from trainer.data.hub_datasets import with_local_folders
from trainer.events import Event, PhaseChanged, WarningRaised

_REPORTED_EVERY_SECONDS = 1.0


def dataset_settings(config: Config) -> DatasetSettings:
    """Return the settings of a config that determine its images and their order, with the local folders of images."""
    data = config.data
    is_fixed = data.fixed_width_px > 0 and data.fixed_height_px > 0
    rules = BucketRules(
        data.resolution_px,
        data.bucket_step_px,
        data.max_aspect_ratio,
        data.aspect_ratio_bucketing,
        Size(data.fixed_width_px, data.fixed_height_px) if is_fixed else None,
        data.bucket_aspect_ratios,
        data.never_upscale,
        data.min_side_px,
    )
    return DatasetSettings(
        tuple(c for c in with_local_folders(config).concepts if c.enabled),
        rules,
        config.training.batch_size,
        config.training.accumulation_steps,
        config.general.seed,
        steps_per_group(config),
        data.partial_batches,
        _wanted_companions(config),
        reads_images=learns_from(config) != "prompts",
        reads_pixels=trains_on_pixels(config),
    )


def _wanted_companions(config: Config) -> WantedCompanions:
    inputs = tuple(
        i if not i.file_setting or get_path(config, i.file_setting) else replace(i, suffix="")
        for i in inputs_of(config)
    )
    if (fit := fit_of_references(config)) is not None:
        inputs = tuple(replace(i, fit=fit) if i.reference else i for i in inputs)
    return WantedCompanions(masks=config.masks.enabled or inpaints(config), inputs=inputs)


def datasets_of(config: Config, watch: Watch = ignore_progress) -> Datasets:
    """Scan the images of a config, apart from those that an index in its cache folder knows.

    `watch` is called during each scan. Raises OSError for a folder that does not exist.
    """
    return build_datasets(dataset_settings(config), image_index(cache_folder(config)), watch)


def cache_folder(config: Config) -> Path | None:
    """Return the folder of a config's caches; None for one that keeps nothing on disk."""
    in_memory = config.data.cache_location == "memory" or not config.general.cache_dir.strip()
    return None if in_memory else from_root(config.general.cache_dir)


def scan_watch(emit: Callable[[Event], None], check: Callable[[], None]) -> Watch:
    """Return a watch that reports a long scan about once per second, and calls `check`, which may raise to stop it."""
    reported = time.monotonic()

    def watch(done: int, total: int) -> None:
        nonlocal reported
        check()
        if time.monotonic() - reported >= _REPORTED_EVERY_SECONDS:
            reported = time.monotonic()
            emit(PhaseChanged("scanning", f"{done:,} of {count(total, 'image')}"))

    return watch


def still_valid(datasets: Datasets | None, config: Config, emit: Callable[[Event], None]) -> Datasets | None:
    """Return the datasets that a check of this config found; None if there are none, or if files have changed.

    Then the images must be scanned again, and a warning is emitted.
    """
    if datasets is None or datasets.settings != dataset_settings(config):
        return None
    return datasets if is_current(datasets, emit) else None


def up_to_date(datasets: Datasets, emit: Callable[[Event], None], check: Callable[[], None] = lambda: None) -> Datasets:
    """Return the current datasets: the given ones, or a new scan with a warning if files have changed.

    `check` is called during the scan and may raise to stop it. Raises OSError for a folder that no longer exists.
    """
    if is_current(datasets, emit):
        return datasets
    return build_datasets(datasets.settings, datasets.index, scan_watch(emit, check))


def is_current(datasets: Datasets, emit: Callable[[Event], None]) -> bool:
    """Return whether no file of datasets has changed since their scan, and emit a warning if one has."""
    is_current = datasets.is_current()
    if not is_current:
        emit(WarningRaised("Images or captions have changed since they were checked. They are scanned again."))
    return is_current
