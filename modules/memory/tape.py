"""A forward pass of numbers without tensors: what torch would hold at each moment, counted the way torch frees.

An `Array` is a shape and an item size; its bytes count as long as somebody refers to it, as those of a tensor do.
What autograd keeps for the backward pass is referred to by the tape. Where torch's operations and autocast keep more
than one would think (a copy per cast, the input of every convolution, frozen or not), this keeps the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

CheckpointMode = Literal["off", "block", "whole"]
Trains = Literal["nothing", "full", "adapter"]
# Weights' gradients on the way back: they come one by one and stay; those of an earlier micro-batch lie there already;
# or they go as they come, as a fused backward pass lets them.
Gradients = Literal["come", "lie", "come and go"]
Shape = tuple[int, ...]

FLOAT32_BYTES = 4


class Meter:
    """The bytes that are in use, and the most that ever were."""

    __slots__ = ("live", "peak")

    def __init__(self) -> None:
        self.live = 0
        self.peak = 0

    def take(self, num_bytes: int) -> None:
        """Count bytes as in use."""
        self.live += num_bytes
        if self.live > self.peak:
            self.peak = self.live


class Storage:
    """Some bytes, in use until nobody refers to them."""

    __slots__ = ("meter", "num_bytes")

    def __init__(self, meter: Meter, num_bytes: int) -> None:
        self.meter = meter
        self.num_bytes = num_bytes
        meter.take(num_bytes)

    def __del__(self) -> None:
        self.meter.live -= self.num_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """A tensor without its numbers; views share a storage."""

    shape: Shape
    item_bytes: int
    needs_grad: bool
    storage: Storage

    @property
    def num_bytes(self) -> int:
        """What the numbers of this shape take."""
        return math.prod(self.shape) * self.item_bytes

    def view(self, *shape: int) -> Array:
        """Return the same bytes under another shape, or a part of them."""
        return Array(shape, self.item_bytes, self.needs_grad, self.storage)


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """An adapter on every linear and convolution layer whose dotted name contains one of `entries`.

    `walk` runs it beside a layer, by its `settings` (`modules/adapters/spec.py`).
    """

    settings: Any
    walk: Callable[..., Array]
    item_bytes: int
    entries: tuple[str, ...]
    has_dropout: bool = False

    def takes(self, path: str) -> bool:
        """Whether a layer gets it."""
        return any(entry in path for entry in self.entries)


@dataclass(frozen=True, slots=True)
class PartPlan:
    """How a part is kept and run.

    `weight_bytes` and `compute_bytes` are item sizes, the latter of autocast, 0 without; `trains` says what of it
    learns, `adapter` how, where it is an adapter. What begins with one of `unreached` never learns: no gradient gets
    there.
    `offloads` moves what autograd keeps to the offload device. `offload_fraction` of the weights of its blocks wait
    there; which these are is known with the sizes: what begins with one of `offloaded_bytes`.
    """

    weight_bytes: int = FLOAT32_BYTES
    compute_bytes: int = 0
    trains: Trains = "nothing"
    adapter: AdapterPlan | None = None
    unreached: tuple[str, ...] = ()
    checkpointing: CheckpointMode = "off"
    offloads: bool = False
    offload_fraction: float = 0.0
    offloaded_bytes: tuple[str, ...] = ()

    def learns(self, path: str) -> bool:
        """Whether a layer's own weights learn."""
        return self.trains == "full" and not path.startswith(self.unreached)

    def learns_here(self, path: str) -> bool:
        """Whether a layer's own weights learn on the training device."""
        return self.learns(path) and not path.startswith(self.offloaded_bytes)

    def adapter_on(self, path: str) -> AdapterPlan | None:
        """Return the adapter that a layer has, or None."""
        if self.trains != "adapter" or self.adapter is None or path.startswith(self.unreached):
            return None
        return self.adapter if self.adapter.takes(path) else None


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of the backward pass: bytes in use beside weights and their gradients, and the gradients still to come.

    `later` counts the trained weights' bytes of the layers before this one, whose gradients are not there yet.
    """

    in_use: int
    later: int


@dataclass(slots=True)
class Tape:
    """One pass through one or more parts: what is in use on the way, and what will be on the way back."""

    meter: Meter = field(default_factory=Meter)
    kept: dict[int, Storage] = field(default_factory=dict)
    kept_bytes: int = 0
    casts: dict[str, Array] = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)
    trained_bytes: int = 0

    def keep(self, array: Array) -> None:
        """Refer to an array until the backward pass. What belongs to another tape is counted there."""
        storage = array.storage
        if id(storage) not in self.kept:
            self.kept[id(storage)] = storage
            self.kept_bytes += storage.num_bytes if storage.meter is self.meter else 0

    def mark(self, more_bytes: int) -> None:
        """Note that the backward pass will be here once, with what is kept by now and that many bytes more."""
        self.moments.append(Moment(self.kept_bytes + more_bytes, self.trained_bytes))

    def take_over(self, inner: Tape, *, gradient_bytes: int) -> None:
        """Note that a checkpointed block, whose tape is `inner`, runs once more on the way back.

        `gradient_bytes` is what the gradient of its result takes, which waits meanwhile.
        """
        offloaded_bytes = self.kept_bytes + gradient_bytes
        for moment in (Moment(inner.meter.peak, inner.trained_bytes), *inner.moments):
            self.moments.append(Moment(offloaded_bytes + moment.in_use, self.trained_bytes + moment.later))
        self.trained_bytes += inner.trained_bytes

    def end_forward(self) -> None:
        """Let go of the copies of trained weights that autocast remembers until the forward pass is over."""
        self.casts.clear()

    def backward_peak(self, gradients: Gradients) -> tuple[int, int]:
        """Return the bytes in use and those of weights' gradients at the moment on the way back that takes most."""
        everything = self.trained_bytes
        coming = 1 if gradients == "come" else 0
        there = 0 if gradients == "come and go" else everything
        moments = ((m.in_use, there - coming * m.later) for m in self.moments)
        return max(moments, key=sum, default=(0, there))
