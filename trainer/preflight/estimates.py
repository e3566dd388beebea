"""Whether the run fits the card and the disk, as far as shapes and numbers of images tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from modules.config.schema import Config
from modules.data.buckets import Size
from modules.data.dataset import Dataset
from modules.system.problem import Problem
from trainer.preflight.budget import disk_problems, memory_problems


def problems_of_estimates(
    config: Config, training: Dataset, validation: Dataset, *, total_steps: int
) -> Iterator[Problem]:
    """Yield where memory or disk would not do. Nothing is said of a model that is not known by its shapes."""
    sizes = sizes_of(training, validation)
    if not sizes:
        return
    yield from memory_problems(config, sizes)
    captions = {c for d in (training, validation) for e in d.examples for c in e.image.captions}
    yield from disk_problems(config, sizes, num_captions=len(captions), total_steps=total_steps)


def sizes_of(training: Dataset, validation: Dataset) -> Counter[Size]:
    """Return how many images, of either kind, the run meets at each size."""
    return Counter(training.bucket_counts) + Counter(validation.bucket_counts)
