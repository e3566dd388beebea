"""The disk space that a run needs, from the shapes of its tensors, and the free space of a disk."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from modules.data.buckets import Size
from modules.estimate.passes import PartWeights, Plans, count
from modules.estimate.run import optimizer_bytes
from modules.families.spec import LatentSpec
from modules.memory.part_plan import FLOAT32_BYTES
from modules.optim.spec import OptimizerSettings

_ENTRY_BYTES = 1024
"""The overhead of a cache entry: a header, a checksum, and half a block of the file system."""


@dataclass(frozen=True, slots=True)
class DiskNeed:
    """The bytes that a run writes: one backup, one saved model, both caches. `latents_bytes` includes masks."""

    backup_bytes: int
    result_bytes: int
    latents_bytes: int
    text_bytes: int

    @property
    def cache_bytes(self) -> int:
        """The size of both caches."""
        return self.latents_bytes + self.text_bytes


def latents_bytes(counts: Mapping[Size, int], latents: LatentSpec, *, item_bytes: int) -> int:
    """Return the size of cached latents; `counts` is the number of images and clips by size."""
    return sum(
        number * (math.prod(latents.shape(size.width_px, size.height_px, size.num_frames)) * item_bytes + _ENTRY_BYTES)
        for size, number in counts.items()
    )


def text_bytes(num_captions: int, *, num_elements: int, item_bytes: int) -> int:
    """Return the size of cached text embeddings: `num_elements` per caption, and for the empty caption."""
    return (num_captions + 1) * (num_elements * item_bytes + _ENTRY_BYTES)


def backup_bytes(
    weights: Mapping[str, PartWeights],
    plans: Plans,
    *,
    optimizer: OptimizerSettings,
    has_master_weights: bool,
    has_average: bool,
    has_reference: bool = False,
) -> int:
    """Return the size of one backup: the trained weights or their master weights, the optimizer's state, and EMA.

    With `has_reference` it also contains a copy of the trained weights as they were at a later step.
    """
    total = 0
    for name, part in weights.items():
        plan = plans[name]
        if plan.trains == "nothing":
            continue
        shapes = part.trained_shapes(plan)
        item = plan.adapter.item_bytes if plan.adapter else plan.weight_bytes
        kept = (FLOAT32_BYTES if has_master_weights else item) + (item if has_reference else 0)
        total += count(shapes) * (kept + (FLOAT32_BYTES if has_average else 0)) + optimizer_bytes(optimizer, shapes)
    return total


def result_bytes(weights: Mapping[str, PartWeights], plans: Plans, *, is_whole_model: bool, item_bytes: int) -> int:
    """Return the size of the saved model: a whole model, or only the adapters with the layers that are kept."""
    parts = weights.values()
    if is_whole_model:
        return item_bytes * sum(count(p.shapes.values()) for p in parts)
    return item_bytes * sum(count(weights[n].adapter.values()) + plans[n].num_kept for n in plans)


def free_bytes(path: Path) -> int | None:
    """Return the free bytes of the file system of a path, which need not exist yet; None if unknown."""
    return _read_nearest(path, lambda folder: shutil.disk_usage(folder).free)


def file_system_of(path: Path) -> int | None:
    """Return the id of the file system of a path, which need not exist yet; None if unknown."""
    return _read_nearest(path, lambda folder: folder.stat().st_dev)


def _read_nearest(path: Path, read: Callable[[Path], int]) -> int | None:
    for folder in (path, *path.parents):
        try:
            return read(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError):
            return None
    return None


def num_backups(keep: int, expected: float) -> int:
    """Return the largest number of backups at a time: those that are kept, and the one being written."""
    most = max(1, math.ceil(expected))
    return min(most, keep + 1) if keep else most
