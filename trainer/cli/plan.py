"""The plan of a run, image by image, as text for the command line."""

from __future__ import annotations

from modules.data.datasets import Datasets
from modules.data.plan_table import describe_buckets, describe_images, plan_rows
from modules.data.versions import ImageVersions
from modules.system.problem import count


def plan_lines(datasets: Datasets, *, is_cached: bool, epochs: int, every_image: bool) -> list[str]:
    """Return a line for each bucket of the training images, and with `every_image` one for each version of an image.

    The numbers are those of a run of `epochs` epochs.
    """
    versions = ImageVersions(datasets.training, datasets.settings.run_seed, is_cached=is_cached)
    rows = plan_rows(datasets.training, datasets.plans, versions, epochs=epochs)
    return [*describe_buckets(rows), *_left_out(datasets), *(describe_images(rows) if every_image else [])]


def _left_out(datasets: Datasets) -> list[str]:
    """Return a line with the images of the first epoch's partial batches, where these are not trained in it."""
    numbers = {s.example for s in datasets.plans.left_out(0)}
    names = sorted(datasets.training.examples[n].image.path.name for n in numbers)
    if not names:
        return []
    is_merged = datasets.settings.partial_batches == "merge"
    waits, is_dropped = ("waits", "is dropped") if len(names) == 1 else ("wait", "are dropped")
    fate = f"{waits} for a later epoch" if is_merged else f"{is_dropped} from epoch 1"
    return [f"  In partial batches, {count(len(names), 'image')} {fate}: {', '.join(names)}"]
