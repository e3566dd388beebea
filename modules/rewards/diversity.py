"""How different the images of the same prompt are."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt


def diversity(images: Sequence[npt.NDArray[np.uint8]], prompts: Sequence[Hashable]) -> float | None:
    """Return the root mean squared distance of two images of the same prompt, over all pairs; None without a pair.

    The distance is the root mean squared difference of pixel values, 0 to 1. Images of a prompt have the same shape.
    Computed without going through the pairs: their mean squared distance is `2 / (K - 1) sum_k |x_k - mean|^2`.
    """
    groups: dict[Hashable, list[npt.NDArray[np.uint8]]] = {}
    for image, prompt in zip(images, prompts, strict=True):
        groups.setdefault((prompt, image.shape), []).append(image)
    squares, num_pairs = 0.0, 0
    for group in groups.values():
        count = len(group)
        if count < 2:
            continue
        mean = np.mean(group, axis=0, dtype=np.float64)
        spread = sum(float(np.mean((image - mean) ** 2)) for image in group) / 255**2
        pairs = count * (count - 1) // 2
        squares += pairs * 2 / (count - 1) * spread
        num_pairs += pairs
    return float(np.sqrt(squares / num_pairs)) if num_pairs else None
