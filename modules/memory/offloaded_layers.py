"""The choice of the layers of a part that are offloaded, for runs and for the memory estimate."""

from __future__ import annotations

from collections.abc import Sequence

_ROUNDING = 1e-9  # a fraction such as 0.3 is not exact: of ten equal layers it means three, not two


def choose_offloaded(sizes: Sequence[int], fraction: float) -> list[bool]:
    """Return which layers, given by their sizes in the order of the part, are offloaded; at most `fraction` of the sum.

    Evenly spaced, counted from the end. Spaced, because a layer is fetched while the previous offloaded one and all
    layers in between are computed: adjacent offloaded layers would only have each other's time. From the end, because
    the last layer is needed twice in a row, forward and backward, with nothing to compute in between.
    """
    offloaded = [False] * len(sizes)
    seen = offloaded_bytes = 0
    for index in reversed(range(len(sizes))):
        seen += sizes[index]
        if sizes[index] and offloaded_bytes + sizes[index] <= fraction * seen * (1 + _ROUNDING):
            offloaded[index] = True
            offloaded_bytes += sizes[index]
    return offloaded
