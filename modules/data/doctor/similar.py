"""Groups of images that look the same, by perceptual hash and colours."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from modules.data.doctor.measure import Measured

MAX_DISTANCE = 6  # of 64 bits: copies, resized and recompressed ones differ by 0 to 4, other images by about 32
MAX_COLOUR_DIFFERENCE = 12.0  # of 255, on average: the hash sees no colours
MIN_CORRELATION = 0.95  # of the reduced images: simple drawings have similar hashes, with their shapes elsewhere
_ROWS = 512  # compared with all others at once: 20,000 images then need 10 M comparisons, 80 MB


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
