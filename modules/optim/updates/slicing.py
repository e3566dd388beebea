"""The sizes of the slices in which 16-bit weights are updated, and gradients summed. The memory estimate uses both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

SLICE_WEIGHTS = 1 << 24
"""How many weights are updated at once, in float32: 64 MiB per array. A larger tensor is updated alone."""

SUMMED_BYTES = 32 * 2**20
"""How many bytes of gradients several processes sum together at most, except for a single larger one."""


def in_slices(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield the names of tensors in slices of at most `SLICE_WEIGHTS`, from their numbers of weights."""
    taken: list[str] = []
    num_weights = 0
    for name, size in sizes.items():
        if taken and num_weights + size > SLICE_WEIGHTS:
            yield taken
            taken, num_weights = [], 0
        taken.append(name)
        num_weights += size
    if taken:
        yield taken
