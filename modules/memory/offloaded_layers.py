"""Which layers of a part wait on the offload device. Torch-free: the memory estimate asks the same."""

from __future__ import annotations

from collections.abc import Sequence

_ROUNDING = 1e-9  # a share such as 0.3 is not exact: three equal layers of ten are meant, not two


def choose_offloaded(sizes: Sequence[int], fraction: float) -> list[bool]:
    """Return which of the layers, given by their sizes in the order of the part, wait; at most `fraction` of the sum.

    Evenly spread, counted from the end. Spread, because a layer is fetched while the one before it that waits, and
    all that stay in between, are computed: side by side, waiting layers would have only each other's time. From the
    end, because the last layer is wanted twice in a row, forward and backward, with nothing to compute in between.
    """
    offloaded = [False] * len(sizes)
    seen = offloaded_bytes = 0
    for index in reversed(range(len(sizes))):
        seen += sizes[index]
        if sizes[index] and offloaded_bytes + sizes[index] <= fraction * seen * (1 + _ROUNDING):
            offloaded[index] = True
            offloaded_bytes += sizes[index]
    return offloaded
