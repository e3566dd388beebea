"""Checks across images: near-duplicates, and the balance of concepts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from modules.data.doctor.examined import Examined, ExaminedImage
from modules.data.doctor.finding import CheckSpec, Finding
from modules.data.doctor.measure import Measured
from modules.data.doctor.pixel_checks import MIN_SPREAD

MAX_IMBALANCE = 5.0  # times the samples of the rarest concept: more, and the rarest is hardly learned next to it
MAX_DISTANCE = 6  # of 64 bits: copies, resized and recompressed ones differ by 0 to 4, other images by about 32
MAX_COLOUR_DIFFERENCE = 12.0  # of 255, on average: the hash sees no colours
MIN_CORRELATION = 0.95  # of the reduced images: simple drawings have similar hashes, with their shapes elsewhere
_ROWS = 512  # compared with all others at once: 20,000 images then need 10 M comparisons, 80 MB


def _near_duplicates(examined: Examined) -> Iterator[Finding]:
    # Images of one colour have no structure to compare.
    comparable = [(i, m) for i, m in examined.measured() if m.spread >= MIN_SPREAD]
    for group, distance in similar_groups([m for _, m in comparable]):
        finding = _duplicates(examined, [comparable[i] for i in group], distance)
        if finding is not None:
            yield finding


def _duplicates(examined: Examined, group: list[tuple[ExaminedImage, Measured]], distance: int) -> Finding | None:
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
    return Finding("near_duplicate", files, reason, distance, "of 64 bits differ", fix)


def _imbalance(examined: Examined) -> Iterator[Finding]:
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
                "concept_imbalance",
                (concept.folder,),
                f"The concept {concept.name} has {number:,.4g} samples per epoch, {examined.concepts[most].name} has "
                f"{used[most]:,.4g}.",
                ratio,
                "times as many",
                f"Multiply the {field} of {concept.name} by {_factor(ratio):g}, or lower those of the other.",
            )


def _factor(ratio: float) -> float:
    """Return a round factor that brings a concept within half of the largest one."""
    return math.ceil(ratio / 2)


NEAR_DUPLICATE = CheckSpec(
    "near_duplicate",
    "Near-duplicates",
    "Images that look the same, also across training and validation.",
    _near_duplicates,
)
CONCEPT_IMBALANCE = CheckSpec(
    "concept_imbalance",
    "Concept imbalance",
    "Training concepts with far fewer samples per epoch (images times repeats) than another.",
    _imbalance,
    compares_concepts=True,
)


def similar_groups(images: Sequence[Measured]) -> Iterator[tuple[list[int], int]]:
    """Yield the groups of similar images as sorted indices, with the largest distance between two that are compared.

    An image belongs to a group if it is similar to one of its members. All pairs of hashes are compared, in blocks.
    """
    leader = list(range(len(images)))
    distances: dict[int, int] = {}

    def find(index: int) -> int:
        while leader[index] != index:
            leader[index] = leader[leader[index]]
            index = leader[index]
        return index

    pairs = list(_pairs(images))
    for first, second, _ in pairs:
        low, high = sorted((find(first), find(second)))
        leader[high] = low
    for first, _, distance in pairs:
        root = find(first)
        distances[root] = max(distances.get(root, 0), distance)
    groups: dict[int, list[int]] = defaultdict(list)
    for index in range(len(images)):
        if find(index) in distances:
            groups[find(index)].append(index)
    for root, members in groups.items():
        yield members, distances[root]


def _pairs(images: Sequence[Measured]) -> Iterator[tuple[int, int, int]]:
    """Yield the pairs of similar images, as indices and the distance of their hashes."""
    hashes_N = np.array([i.hash for i in images], dtype=np.uint64)
    for start in range(0, len(images), _ROWS):
        rows = hashes_N[start : start + _ROWS, None]
        distances_RN: NDArray[np.uint8] = np.bitwise_count(rows ^ hashes_N[None, start:])
        for row, column in np.argwhere(distances_RN <= MAX_DISTANCE):
            first, second = start + int(row), start + int(column)
            if first < second and _look_the_same(images[first], images[second]):
                yield first, second, int(distances_RN[row, column])


def _look_the_same(first: Measured, second: Measured) -> bool:
    one, other = first.colours.astype(np.float32).ravel(), second.colours.astype(np.float32).ravel()
    if float(np.abs(one - other).mean()) > MAX_COLOUR_DIFFERENCE:
        return False
    one, other = one - one.mean(), other - other.mean()
    scale = math.sqrt(float(one @ one) * float(other @ other))
    return scale == 0 or float(one @ other) >= MIN_CORRELATION * scale
