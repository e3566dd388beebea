"""The plan of a run image by image: bucket, scale, crop box and samples per epoch, as rows, CSV and text."""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields

from modules.data.buckets import Size
from modules.data.dataset import Dataset, concept_repeats_of
from modules.data.plans import EpochPlans
from modules.data.versions import ImageVersion, ImageVersions, num_variations


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One version of an image. The crop is in pixels of the upright image; sizes are as in "512x768".

    `scale` is how many trained pixels a pixel of the image becomes. `samples_per_epoch` is the mean over the run,
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


def plan_rows(dataset: Dataset, plans: EpochPlans, versions: ImageVersions) -> list[PlanRow]:
    """Return the rows of all versions of the images of a dataset, in their order. No file is opened."""
    repeats = [float(r.exact_repeats) for r in concept_repeats_of(dataset.concepts, run_seed=versions.run_seed)]
    trained = Counter(
        (
            s.example,
            dataset.buckets[s.example][s.resolution],
            versions.variation_of(s) if versions.is_cached else 0,
        )
        for group in plans.accumulation_groups(0)
        for batch in group
        for s in batch
    )
    rows: dict[tuple[int, Size, int], PlanRow] = {}
    for version in versions.cached() if versions.is_cached else versions.first():
        sizes = dataset.buckets[version.example]
        bucket = version.recipe.bucket
        share = sizes.count(bucket) / len(sizes)
        concept = dataset.examples[version.example].concept
        count = num_variations(dataset.concepts[concept]) if versions.is_cached else 1
        place = (version.example, bucket, version.variation)
        rows[place] = _row(dataset, version, repeats[concept] * share / count, trained[place])
    return list(rows.values())


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
            f"  {bucket:>11}  {images:6,} image{'s' if images != 1 else ' '}  {samples:6,} samples in epoch 1  "
            f"scale {min(scales):.2f} to {max(scales):.2f}  {cropped:4.0%} cropped"
        )
    return lines


def describe_images(rows: Sequence[PlanRow]) -> list[str]:
    """Return a line for each row."""
    return [
        f"  {row.image}: {row.size} to {row.bucket}, scale {row.scale:.3f}, crop {row.crop_left:g},{row.crop_top:g} to "
        f"{row.crop_right:g},{row.crop_bottom:g}, {row.samples_per_epoch:g} samples per epoch"
        for row in rows
    ]


def _cropped(row: PlanRow) -> float:
    """Return the share of the image that is cropped away."""
    width, height = (int(side) for side in row.size.split("x"))
    seen = (row.crop_right - row.crop_left) * (row.crop_bottom - row.crop_top)
    return max(0.0, 1 - seen / (width * height))
