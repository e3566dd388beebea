"""The plan of a run image by image: bucket, scale, crop box and samples per epoch, as rows, CSV and text."""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields

from modules.data.buckets import Size
from modules.data.dataset import Dataset
from modules.data.order import SampleIndex, uses_of_size_before
from modules.data.plans import EpochPlans
from modules.data.versions import ImageVersion, ImageVersions, num_variations

_MOST_COUNTED = 500_000  # samples


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One version of an image. The crop is in pixels of the upright image; sizes are as in "512x768".

    `rejected_image` is the rejected image of a pair, whose chosen image this is: it has the same bucket and crop.

    `scale` is how many trained pixels a pixel of the image becomes. `samples_per_epoch` is the mean number
    that is trained in the epochs of the run (in its first epochs, if it has more than half a million samples), and
    `samples_epoch_1` the number in the first epoch. Without the latent cache, augmentations are drawn anew each time:
    the row shows the draw of the first epoch.
    """

    concept: str
    image: str
    size: str
    bucket: str
    scale: float
    crop_left: float
    crop_top: float
    crop_right: float
    crop_bottom: float
    degrees: float
    is_mirrored: bool
    variation: int
    samples_per_epoch: float
    samples_epoch_1: int
    rejected_image: str = ""


def plan_rows(dataset: Dataset, plans: EpochPlans, versions: ImageVersions, *, epochs: int) -> list[PlanRow]:
    """Return the rows of all versions of the images of a dataset, in their order, for a run of `epochs` epochs.

    No file is opened.
    """

    def place_of(sample: SampleIndex) -> tuple[int, Size, int]:
        variation = versions.variation_of(sample) if versions.is_cached else 0
        return sample.example, dataset.buckets[sample.example][sample.resolution], variation

    epochs = _counted_epochs(dataset, plans, epochs)
    in_epoch_1 = Counter(place_of(s) for group in plans.accumulation_groups(0) for batch in group for s in batch)
    dropped = Counter(place_of(s) for s in plans.dropped_samples(epochs))
    rows: dict[tuple[int, Size, int], PlanRow] = {}
    for version in versions.cached() if versions.is_cached else versions.first():
        number, bucket = version.example, version.recipe.bucket
        concept = dataset.concepts[dataset.examples[number].concept]
        count = num_variations(concept) if versions.is_cached else 1
        uses = plans.uses_before(number, epochs)
        uses_at_size = uses_of_size_before(dataset.buckets[number], bucket, example=number, use=uses)
        place = (number, bucket, version.variation)
        in_turn = -((version.variation - uses_at_size) // count)  # its share: the variations are used in turn
        rows[place] = _row(dataset, version, (in_turn - dropped[place]) / epochs, in_epoch_1[place])
    return list(rows.values())


def _counted_epochs(dataset: Dataset, plans: EpochPlans, epochs: int) -> int:
    """Return how many epochs the means are taken over: finding the dropped samples takes time for each of them."""
    num_samples = sum(plans.uses_before(number, epochs) for number in range(len(dataset.examples)))
    return epochs if num_samples <= _MOST_COUNTED else max(1, epochs * _MOST_COUNTED // num_samples)


def _row(dataset: Dataset, version: ImageVersion, samples_per_epoch: float, samples_first: int) -> PlanRow:
    example, geometry = dataset.examples[version.example], version.recipe.geometry
    size = Size(example.image.width_px, example.image.height_px)
    left, top, right, bottom = (round(side, 2) for side in geometry.crop_box(size))
    return PlanRow(
        dataset.concepts[example.concept].name,
        str(example.image.path),
        str(size),
        str(version.recipe.bucket),
        round(geometry.scale(size), 5),
        left,
        top,
        right,
        bottom,
        round(geometry.degrees, 3),
        geometry.is_flipped,
        version.variation,
        round(samples_per_epoch, 4),
        samples_first,
        str(example.image.rejected.path) if example.image.rejected is not None else "",
    )


def as_csv(rows: Sequence[PlanRow]) -> str:
    """Return the rows as CSV, with a header."""
    text = io.StringIO()
    names = [f.name for f in fields(PlanRow)]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([getattr(row, name) for name in names] for row in rows)
    return text.getvalue()


def describe_buckets(rows: Sequence[PlanRow]) -> list[str]:
    """Return a line for each bucket: its images, their samples in the first epoch, scales, and what is cropped."""
    by_bucket: dict[str, list[PlanRow]] = defaultdict(list)
    for row in rows:
        by_bucket[row.bucket].append(row)
    lines = []
    for bucket, inside in sorted(by_bucket.items(), key=lambda item: -len(item[1])):
        scales = [row.scale for row in inside]
        images = len({row.image for row in inside})
        samples = sum(row.samples_epoch_1 for row in inside)
        cropped = sum(_cropped(row) for row in inside) / len(inside)
        lines.append(
            f"  {bucket:>11}  {images:6,} {'image ' if images == 1 else 'images'}  "
            f"{samples:6,} {'sample ' if samples == 1 else 'samples'} in epoch 1  "
            f"scale {min(scales):.2f} to {max(scales):.2f}  {cropped:4.0%} cropped"
        )
    return lines


def describe_images(rows: Sequence[PlanRow]) -> list[str]:
    """Return a line for each row."""
    return [
        f"  {row.image}: {row.size} to {row.bucket}, scale {row.scale:.3f}, crop {row.crop_left:g},{row.crop_top:g} to "
        f"{row.crop_right:g},{row.crop_bottom:g}, {row.samples_per_epoch:g} "
        f"{'sample' if row.samples_per_epoch == 1 else 'samples'} per epoch"
        for row in rows
    ]


def _cropped(row: PlanRow) -> float:
    """Return the share of the image that is cropped away."""
    width, height = (int(side) for side in row.size.split("x"))
    seen = (row.crop_right - row.crop_left) * (row.crop_bottom - row.crop_top)
    return max(0.0, 1 - seen / (width * height))
