"""The arrays of a replayed pass, and the tape with the arrays that its backward pass needs.

An `Array` is a number of elements and their size; like a tensor's, its bytes count as long as it is referenced. Arrays
that autograd saves for the backward pass are referenced by the tape.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Gradients = Literal["new", "accumulated", "fused"]
"""Weight gradients in the backward pass. "new": allocated one by one and kept; "accumulated": already allocated by an
earlier micro-batch; "fused": freed as soon as they are used, as in a fused backward pass.
"""


class Meter:
    """The bytes in use, and their peak."""

    __slots__ = ("live", "peak")

    def __init__(self, peak: int = 0) -> None:
        self.live = 0
        self.peak = peak

    def take(self, num_bytes: int) -> None:
        """Count bytes as in use."""
        self.live += num_bytes
        if self.live > self.peak:
            self.peak = self.live


class Storage:
    """Some bytes, in use until they are no longer referenced."""

    __slots__ = ("meter", "num_bytes")

    def __init__(self, meter: Meter, num_bytes: int) -> None:
        self.meter = meter
        self.num_bytes = num_bytes
        meter.take(num_bytes)

    def __del__(self) -> None:
        self.meter.live -= self.num_bytes


class Array(NamedTuple):
    """A tensor without its data; `channels` are the channels of a layer's input or output, 0 if not known.

    A tuple, as a search for settings that fit makes millions: a frozen dataclass takes several times as long to make.
    """

    numel: int
    item_bytes: int
    needs_grad: bool
    storage: Storage
    is_float: bool = True
    channels: int = 0

    @property
    def num_bytes(self) -> int:
        """The size of the array."""
        return self.numel * self.item_bytes


class Moment(NamedTuple):
    """A moment of the backward pass.

    `in_use` are the bytes in use besides weights and their gradients, `later` the bytes of the weight gradients that
    are not computed yet: of the layers before this one.
    """

    in_use: int
    later: int


@dataclass(slots=True)
class Tape:
    """One pass through one or more parts: the bytes in use during the forward pass and the later backward pass."""

    meter: Meter = field(default_factory=Meter)
    kept: dict[int, Storage] = field(default_factory=dict)
    kept_bytes: int = 0
    casts: dict[str, Array] = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)
    trained_bytes: int = 0

    def keep(self, array: Array) -> None:
        """Reference an array until the backward pass. An array of another tape's meter is counted there."""
        storage = array.storage
        if id(storage) not in self.kept:
            self.kept[id(storage)] = storage
            self.kept_bytes += storage.num_bytes if storage.meter is self.meter else 0

    def mark(self, more_bytes: int) -> None:
        """Record a moment of the backward pass, with everything kept so far and `more_bytes` in use."""
        self.moments.append(Moment(self.kept_bytes + more_bytes, self.trained_bytes))

    def take_over(self, inner: Tape, gradient_bytes: int) -> None:
        """Record that a checkpointed block, whose tape is `inner`, is recomputed in the backward pass.

        `gradient_bytes` is the size of its output's gradient, which is held meanwhile.
        """
        held_bytes = self.kept_bytes + gradient_bytes
        for moment in (Moment(inner.meter.peak, inner.trained_bytes), *inner.moments):
            self.moments.append(Moment(held_bytes + moment.in_use, self.trained_bytes + moment.later))
        self.trained_bytes += inner.trained_bytes

    def end_forward(self) -> None:
        """Free the casts of trained weights that autocast caches until the end of the forward pass."""
        self.casts.clear()

    def backward_peak(self, gradients: Gradients) -> tuple[int, int]:
        """Return the bytes in use and the bytes of weight gradients at the peak moment of the backward pass."""
        at_end = 0 if gradients == "fused" else self.trained_bytes
        moments = ((m.in_use, at_end - (m.later if gradients == "new" else 0)) for m in self.moments)
        return max(moments, key=sum, default=(0, at_end))
