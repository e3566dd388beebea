"""Checks across images: their sizes, their buckets, duplicates, and the balance of concepts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from modules.data.buckets import Size
from modules.data.doctor.finding import CheckSpec, Examination, ExaminedImage, Finding
from modules.data.doctor.measure import Measurement
from modules.data.doctor.pixel_checks import MIN_SPREAD
from modules.system.problem import Severity

MAX_UPSCALING = 1.25  # below, the softness of upscaling can hardly be seen
MAX_ASPECT = 3.0  # base models have seen few images that are longer; their own buckets end at 2 to 4
MAX_CROPPED = 0.2  # of the image: with buckets, most images lose less than 5 %
_FITS_A_BUCKET = "Turn on aspect ratio bucketing, raise the max aspect ratio, or crop the image yourself."
_FITS_THE_SIZE = (
    "Crop the image yourself, choose a size nearer to its shape, or set the resolution as one number and turn on "
    "aspect ratio bucketing."
)
_FILLS_A_BUCKET = "Crop its images to a more frequent size, add similar ones, or raise the repeats."
_FILLS_THE_SIZE = "Add images, raise the repeats, or lower the batch size."
_PARTIAL: dict[str, tuple[str, Severity]] = {
    "keep": ("is trained in smaller batches", "info"),
    "merge": ("waits for the next epochs", "info"),
    "drop": ("is left out of an epoch", "warning"),
}


def _find_tiny(examined: Examination) -> Iterator[Finding]:
    for image in _with_images(examined):
        size = _size(image)
        fits = examined.fits_of(image)
        scale, bucket, is_fixed = max((f.scaled.width_px / size.width_px, f.bucket, fixed) for f, fixed in fits)
        if scale > MAX_UPSCALING:
            yield Finding(
                (image.path,),
                f"The image of {size} is smaller than {'the' if is_fixed else 'its'} {_name(bucket, is_fixed)}: it is "
                "upscaled.",
                scale,
                "times upscaled",
                f"Use a larger version of the image, {'choose a smaller size' if is_fixed else 'lower the resolution'}"
                ", or switch on Never upscale.",
            )


def _find_extreme_aspects(examined: Examination) -> Iterator[Finding]:
    for image in _with_images(examined):
        size = _size(image)
        aspect = max(size.aspect, 1 / size.aspect)
        if aspect > MAX_ASPECT:
            yield Finding(
                (image.path,),
                f"The image of {size} is more than {MAX_ASPECT:g} times as long as it is wide or high.",
                aspect,
                ": 1",
                "Cut it into parts or crop it to what matters.",
            )


def _find_cropped(examined: Examination) -> Iterator[Finding]:
    for image in _with_images(examined):
        if image.example.mask_box is not None:  # it is cropped on purpose
            continue
        fits = examined.fits_of(image)
        lost, bucket, is_fixed = max((_cropped_share(f.scaled, f.bucket), f.bucket, fixed) for f, fixed in fits)
        if lost > MAX_CROPPED:
            yield Finding(
                (image.path,),
                f"Much of the image of {_size(image)} is cropped away for {'the' if is_fixed else 'its'} "
                f"{_name(bucket, is_fixed)}.",
                lost * 100,
                "% cropped",
                _FITS_THE_SIZE if is_fixed else _FITS_A_BUCKET,
            )


def _find_small_buckets(examined: Examination) -> Iterator[Finding]:
    for size, samples in sorted(examined.bucket_samples.items()):
        if not 0 < samples < examined.batch_size:
            continue
        inside = [i for i in examined.images if size in _buckets(i) and not examined.is_validation(i)]
        is_fixed = all(fixed for i in inside for fit, fixed in examined.fits_of(i) if fit.bucket == size)
        what, severity = _PARTIAL[examined.partial_batches]
        yield Finding(
            tuple(dict.fromkeys(i.path for i in inside)),
            f"The {_name(size, is_fixed)} has fewer samples per epoch than a batch ({examined.batch_size}), so it "
            f"{what}.",
            samples,
            "sample per epoch" if samples == 1 else "samples per epoch",
            _FILLS_THE_SIZE if is_fixed or len(examined.bucket_samples) == 1 else _FILLS_A_BUCKET,
            severity,
        )


def _with_images(examined: Examination) -> Iterator[ExaminedImage]:
    return (image for image in examined.images if image.example.image.has_image)


def _name(size: Size, is_fixed: bool) -> str:
    return f"{'fixed size' if is_fixed else 'bucket'} {size}"


def _cropped_share(scaled: Size, bucket: Size) -> float:
    return 1 - bucket.width_px * bucket.height_px / (scaled.width_px * scaled.height_px)


def _size(image: ExaminedImage) -> Size:
    return image.example.image.size


def _buckets(image: ExaminedImage) -> set[Size]:
    return {f.bucket for f in image.example.resize_crops}


TINY = CheckSpec("tiny", "Images that are too small", "Images that are upscaled for training.", _find_tiny)
EXTREME_ASPECT = CheckSpec(
    "extreme_aspect", "Extreme aspect ratios", "Very long or high images.", _find_extreme_aspects
)
BUCKET_WASTE = CheckSpec(
    "bucket_waste", "Images that lose much to cropping", "Images that fit no bucket.", _find_cropped
)
SMALL_BUCKET = CheckSpec(
    "small_bucket",
    "Buckets with less than a batch",
    "Sizes with too few samples for one batch.",
    _find_small_buckets,
    compares_concepts=True,
)


# Checks across images: near-duplicates, and the balance of concepts.
MAX_IMBALANCE = 5.0  # times the samples of the rarest concept: more, and the rarest is hardly learned next to it
MAX_DISTANCE = 6  # of 64 bits: copies, resized and recompressed ones differ by 0 to 4, other images by about 32
MAX_COLOUR_DIFFERENCE = 12.0  # of 255, on average: the hash sees no colours
MIN_CORRELATION = 0.95  # of the reduced images: simple drawings have similar hashes, with their shapes elsewhere
_QUARTER_BITS = 16  # of a hash
_BLOCK = 1 << 18  # pairs that are compared at once, about: 10 MB


def _find_near_duplicates(examined: Examination) -> Iterator[Finding]:
    # Images of one colour have no structure to compare.
    comparable = [(i, m) for i, m in examined.measurements() if m.spread >= MIN_SPREAD]
    for group, distance in similar_groups([m for _, m in comparable], examined.check):
        finding = _describe_duplicates(examined, [comparable[i] for i in group], distance)
        if finding is not None:
            yield finding


def _describe_duplicates(
    examined: Examination, group: list[tuple[ExaminedImage, Measurement]], distance: int
) -> Finding | None:
    are_validation = {examined.is_validation(image) for image, _ in group}
    files = tuple(dict.fromkeys(image.path for image, _ in group))
    is_leak = len(are_validation) > 1
    if len(files) < 2 and not is_leak:  # one file in two concepts: preflight reports their folder
        return None
    how = "the same" if distance == 0 else "almost the same"
    if is_leak:
        reason = f"Images for training and for validation are {how}: the validation loss does not show generalization."
        fix = "Remove them from one of the two concepts."
    else:
        reason = f"These images look {how}, so they count several times."
        fix = "Keep the best one; to give an image more weight, raise the repeats instead."
    return Finding(files, reason, distance, "of 64 bits differ", fix)


def _find_imbalance(examined: Examination) -> Iterator[Finding]:
    """Compare the training concepts. Regularization concepts are balanced by the program."""
    samples = {
        index: sum(i.concept == index for i in examined.images) * concept.samples_per_image
        for index, concept in enumerate(examined.concepts)
        if concept.kind in ("training", "prompts", "pairs")
    }
    used = {index: number for index, number in samples.items() if number > 0}
    if len(used) < 2:
        return
    most = max(used, key=lambda i: used[i])
    for index, number in used.items():
        ratio = used[most] / number
        if ratio > MAX_IMBALANCE:
            concept = examined.concepts[index]
            field = "samples per epoch" if concept.sets_samples else "repeats"
            yield Finding(
                (concept.folder,),
                f"The concept {concept.name} has {number:,.4g} samples per epoch, {examined.concepts[most].name} has "
                f"{used[most]:,.4g}.",
                ratio,
                "times as many",
                f"Multiply the {field} of {concept.name} by {_factor(ratio):g}, or lower the other concept's.",
            )


def _factor(ratio: float) -> float:
    """Return a round factor that brings a concept within half of the largest one."""
    return math.ceil(ratio / 2)


NEAR_DUPLICATE = CheckSpec(
    "near_duplicate",
    "Near-duplicates",
    "Images that look the same, also across training and validation.",
    _find_near_duplicates,
)
CONCEPT_IMBALANCE = CheckSpec(
    "concept_imbalance",
    "Concept imbalance",
    "Training concepts with far fewer samples per epoch (images times repeats) than another.",
    _find_imbalance,
    compares_concepts=True,
)


def similar_groups(
    images: Sequence[Measurement], check: Callable[[], None] = lambda: None
) -> Iterator[tuple[list[int], int]]:
    """Yield the groups of similar images as sorted indices, with the largest distance between two that are compared.

    An image belongs to a group if it is similar to one of its members. `check` is called now and then; it may raise to
    stop.
    """
    leader_N = np.arange(len(images))
    distances_N = np.zeros(len(images), dtype=np.int64)

    def find(index: int) -> int:
        while leader_N[index] != index:
            index = int(leader_N[index])
        return index

    for firsts_P, seconds_P, distances_P in _near_hashes(np.array([i.hash for i in images], dtype=np.uint64)):
        check()
        while (leader_N[leader_N] != leader_N).any():
            leader_N = leader_N[leader_N]
        is_known_P = leader_N[firsts_P] == leader_N[seconds_P]  # most pairs, if many frames of a video are similar
        np.maximum.at(distances_N, leader_N[firsts_P[is_known_P]], distances_P[is_known_P])
        for pair in np.flatnonzero(~is_known_P).tolist():
            low, high = sorted((find(firsts_P[pair]), find(seconds_P[pair])))
            if low == high or _look_the_same(images[firsts_P[pair]], images[seconds_P[pair]]):
                leader_N[high] = low
                distances_N[low] = max(distances_N[low], distances_N[high], distances_P[pair])
    groups: dict[int, list[int]] = defaultdict(list)
    for index in range(len(images)):
        groups[find(index)].append(index)
    for root, members in groups.items():
        if len(members) > 1:
            yield members, int(distances_N[root])


def _near_hashes(
    hashes_N: NDArray[np.uint64],
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]]:
    """Yield blocks of pairs of near hashes, as their indices and distances; some pairs several times.

    Hashes that differ in at most 6 of 64 bits differ in at most one bit of one of their quarters. So for each quarter a
    hash is compared to those with the same one, and to those in which one bit of it is different: in effect to one in a
    thousand (multi-index hashing: Norouzi, Punjani and Fleet 2012, "Fast search in Hamming space").
    """
    for quarter in range(0, 64, _QUARTER_BITS):
        keys_N = (hashes_N >> np.uint64(quarter)).astype(np.int64) & (1 << _QUARTER_BITS) - 1
        order_N = np.argsort(keys_N, kind="stable")
        sizes_K = np.bincount(keys_N, minlength=1 << _QUARTER_BITS)
        starts_K = sizes_K.cumsum() - sizes_K
        for flipped in (0, *(1 << bit for bit in range(_QUARTER_BITS))):
            rows_R = np.flatnonzero(keys_N & flipped == 0)  # each pair once, from one side
            others_R = keys_N[rows_R] ^ flipped
            sizes_R = sizes_K[others_R]
            blocks = np.flatnonzero(np.diff(sizes_R.cumsum() // _BLOCK, prepend=0))
            for block in np.split(np.arange(len(rows_R)), blocks):
                sizes_B = sizes_R[block]
                ends_B = sizes_B.cumsum()
                places_P = np.arange(sizes_B.sum()) + (starts_K[others_R[block]] - ends_B + sizes_B).repeat(sizes_B)
                firsts_P, seconds_P = rows_R[block].repeat(sizes_B), order_N[places_P]
                distances_P = np.bitwise_count(hashes_N[firsts_P] ^ hashes_N[seconds_P])
                is_near_P = distances_P <= MAX_DISTANCE
                if flipped == 0:
                    is_near_P &= firsts_P < seconds_P
                yield firsts_P[is_near_P], seconds_P[is_near_P], distances_P[is_near_P]


def _look_the_same(first: Measurement, second: Measurement) -> bool:
    one, other = first.colours.astype(np.float32).ravel(), second.colours.astype(np.float32).ravel()
    if float(np.abs(one - other).mean()) > MAX_COLOUR_DIFFERENCE:
        return False
    one, other = one - one.mean(), other - other.mean()
    scale = math.sqrt(float(one @ one) * float(other @ other))
    return scale == 0 or float(one @ other) >= MIN_CORRELATION * scale
