"""The plan of a run image by image: bucket, scale, crop box and samples per epoch, as rows, CSV and text."""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields

from modules.data.buckets import Size
from modules.data.dataset import Dataset
from modules.data.order import uses_of_size_before
from modules.data.plans import EpochPlans
from modules.data.samples import SampleIndex
from modules.data.versions import ImageVersion, ImageVersions, num_variations

_MAX_COUNTED = 500_000  # samples


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One version of an image. The crop is in pixels of the upright image; sizes are as in "512x768".

    A prompt without an image has no size, scale, crop, rotation or mirroring.
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
    scale: float | None
    crop_left: float | None
    crop_top: float | None
    crop_right: float | None
    crop_bottom: float | None
    degrees: float | None
    is_mirrored: bool | None
    variation: int
    samples_per_epoch: float
    samples_epoch_1: int
    rejected_image: str = ""


def plan_rows(dataset: Dataset, plans: EpochPlans, versions: ImageVersions, *, epochs: int) -> list[PlanRow]:
    """Return the rows of all versions of the images and prompts of a dataset, in their order.

    The run has `epochs` epochs. No file is opened.
    """

    def place_of(sample: SampleIndex) -> tuple[int, Size, int]:
        variation = versions.variation_of(sample) if versions.is_cached else 0
        return sample.example, dataset.buckets[sample.example][sample.resolution], variation

    epochs = _counted_epochs(dataset, plans, epochs)
    in_epoch_1 = Counter(place_of(s) for group in plans.accumulation_groups(0) for batch in group for s in batch)
    dropped = Counter(place_of(s) for s in plans.dropped_samples(epochs))
    rows: dict[tuple[int, Size, int], PlanRow] = {}
    for version in versions.all_versions() if versions.is_cached else versions.first_versions():
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
    return epochs if num_samples <= _MAX_COUNTED else max(1, epochs * _MAX_COUNTED // num_samples)


def _row(dataset: Dataset, version: ImageVersion, samples_per_epoch: float, samples_first: int) -> PlanRow:
    example, geometry = dataset.examples[version.example], version.recipe.geometry
    if not example.image.has_image:
        return _row_of_prompt(dataset, version, samples_per_epoch, samples_first)
    size = example.image.size
    left, top, right, bottom = (round(side, 2) for side in geometry.crop_box(size))
    return PlanRow(
        dataset.concepts[example.concept].name,
        example.image.path_text,
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


def _row_of_prompt(dataset: Dataset, version: ImageVersion, samples_per_epoch: float, samples_first: int) -> PlanRow:
    example = dataset.examples[version.example]
    return PlanRow(
        concept=dataset.concepts[example.concept].name,
        image=str(example.image.path),
        size="",
        bucket=str(version.recipe.bucket),
        scale=None,
        crop_left=None,
        crop_top=None,
        crop_right=None,
        crop_bottom=None,
        degrees=None,
        is_mirrored=None,
        variation=version.variation,
        samples_per_epoch=round(samples_per_epoch, 4),
        samples_epoch_1=samples_first,
    )


def as_csv(rows: Sequence[PlanRow]) -> str:
    """Return the rows as CSV, with a header; what a row does not have is empty."""
    text = io.StringIO()
    names = [f.name for f in fields(PlanRow)]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([getattr(row, name) for name in names] for row in rows)
    return text.getvalue()


def describe_buckets(rows: Sequence[PlanRow]) -> list[str]:
    """Return a line for each bucket: its images, their samples in the first epoch, scales, and what is cropped.

    Its prompts without an image have a separate line.
    """
    by_bucket: dict[str, list[PlanRow]] = defaultdict(list)
    for row in rows:
        by_bucket[row.bucket].append(row)
    lines = []
    for bucket, inside in sorted(by_bucket.items(), key=lambda item: -len(item[1])):
        if of_images := [row for row in inside if row.size]:
            scales = [row.scale or 0.0 for row in of_images]
            what = "pair" if all(row.rejected_image for row in of_images) else "image"
            cropped = sum(_cropped_share(row) for row in of_images) / len(of_images)
            lines.append(
                f"{_numbers(bucket, what, of_images)}  "
                f"scale {min(scales):.2f} to {max(scales):.2f}  {cropped:4.0%} cropped"
            )
        if of_prompts := [row for row in inside if not row.size]:
            lines.append(_numbers(bucket, "prompt", of_prompts))
    return lines


def _numbers(bucket: str, what: str, rows: Sequence[PlanRow]) -> str:
    number, samples = len({row.image for row in rows}), sum(row.samples_epoch_1 for row in rows)
    return (
        f"  {bucket:>11}  {number:6,} {what}{' ' if number == 1 else 's'}  "
        f"{samples:6,} {'sample ' if samples == 1 else 'samples'} in epoch 1"
    )


def describe_images(rows: Sequence[PlanRow]) -> list[str]:
    """Return a line for each row."""
    return [
        f"  {row.image}: {_place(row)}, {row.samples_per_epoch:g} "
        f"{'sample' if row.samples_per_epoch == 1 else 'samples'} per epoch"
        for row in rows
    ]


def _place(row: PlanRow) -> str:
    """Return how an image is brought to its bucket; for a prompt only the size."""
    if not row.size:
        return row.bucket
    return (
        f"{row.size} to {row.bucket}, scale {row.scale:.3f}, crop {row.crop_left:g},{row.crop_top:g} to "
        f"{row.crop_right:g},{row.crop_bottom:g}"
    )


def _cropped_share(row: PlanRow) -> float:
    """Return the share of the image that is cropped away."""
    width, height = (int(side) for side in row.size.split("x"))
    left, top, right, bottom = (side or 0.0 for side in (row.crop_left, row.crop_top, row.crop_right, row.crop_bottom))
    seen = (right - left) * (bottom - top)
    return max(0.0, 1 - seen / (width * height))
