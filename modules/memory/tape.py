"""A simulated forward pass without tensor data: counts the bytes torch would hold at each moment.

An `Array` is a shape and an item size; like a tensor's, its bytes count as long as it is referenced. Arrays that
autograd saves for the backward pass are referenced by the tape. Where torch's operations and autocast save more than
one would expect (a copy per cast, the input of every convolution, frozen or not), this saves the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from modules.quantization.spec import ChosenFormat, QuantizedFormat
from modules.settings.layer_filter import EVERYTHING, LayerFilter
from modules.settings.shared_types import CheckpointMode

Trains = Literal["nothing", "full", "adapter"]
# Weight gradients in the backward pass. "new": allocated one by one and kept; "accumulated": already allocated by an
# earlier micro-batch; "fused": freed as soon as they are used, as in a fused backward pass.
Gradients = Literal["new", "accumulated", "fused"]
Shape = tuple[int, ...]

FLOAT32_BYTES = 4


class Meter:
    """The bytes in use, and their peak."""

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
    """Some bytes, in use until they are no longer referenced."""

    __slots__ = ("meter", "num_bytes")

    def __init__(self, meter: Meter, num_bytes: int) -> None:
        self.meter = meter
        self.num_bytes = num_bytes
        meter.take(num_bytes)

    def __del__(self) -> None:
        self.meter.live -= self.num_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """A tensor without its data; views share a storage."""

    shape: Shape
    item_bytes: int
    needs_grad: bool
    storage: Storage

    @property
    def num_bytes(self) -> int:
        """The size of an array of this shape."""
        return math.prod(self.shape) * self.item_bytes

    def view(self, *shape: int) -> Array:
        """Return the same storage with another shape, or a part of it."""
        return Array(shape, self.item_bytes, self.needs_grad, self.storage)


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """An adapter on every linear and convolution layer that `layers` takes.

    `walk` runs it beside a layer, by its `settings` (`modules/adapters/spec.py`) or those that `settings_at(path,
    shape)` returns for the layer, from its name and the shape of its weight. `decomposes`: DoRA's magnitudes are
    trained beside it, of the outputs or of the inputs of each layer. `has_own` takes the layers that get an adapter of
    those that `layers` takes; None if all do.
    """

    settings: Any
    walk: Callable[..., Array]
    item_bytes: int
    layers: LayerFilter
    has_dropout: bool = False
    settings_at: Callable[[str, Shape], Any] | None = None
    decomposes: Literal["", "outputs", "inputs"] = ""
    has_own: Callable[[str], bool] | None = None

    def takes(self, path: str) -> bool:
        """Whether a layer gets the adapter."""
        return self.layers.takes(path) and (self.has_own is None or self.has_own(path))


@dataclass(frozen=True, slots=True)
class PartPlan:
    """The dtypes, training and memory settings of a part.

    `weight_bytes` and `compute_bytes` are item sizes, the latter of autocast, 0 without; `trains` selects what is
    trained, and `adapter` is the adapter, if it is one. Layers with a prefix in `unreached` are never trained: they get
    no gradient; a fine-tune only trains those of `layers`. `offloads` moves activations to the offload device.
    `offload_fraction` of the weights of its blocks stay there; the selection depends on the sizes: the layers with a
    prefix in `offloaded_prefixes`. `num_kept` is the number of values in float32 of an adapter that the part has and
    that is not trained. `quantized` is the format of the linear layers that it takes, whose weights are then frozen.
    `has_words`: embeddings are trained, so that a gradient passes through the text encoder. With the checkpointing
    "auto", `checkpointed_blocks` has the names of the blocks that are checkpointed.
    """

    weight_bytes: int = FLOAT32_BYTES
    compute_bytes: int = 0
    trains: Trains = "nothing"
    adapter: AdapterPlan | None = None
    unreached: tuple[str, ...] = ()
    layers: LayerFilter = EVERYTHING
    checkpointing: CheckpointMode = "off"
    offloads: bool = False
    offload_fraction: float = 0.0
    offloaded_prefixes: tuple[str, ...] = ()
    num_kept: int = 0
    quantized: ChosenFormat | None = None
    has_words: bool = False
    checkpointed_blocks: frozenset[str] = frozenset()

    @property
    def has_gradient(self) -> bool:
        """Whether a gradient passes through a text encoder: its weights are trained, or embeddings before them."""
        return self.trains != "nothing" or self.has_words

    def format_of(self, path: str) -> QuantizedFormat | None:
        """Return the format of a linear layer's weight, None where it is not quantized."""
        return self.quantized.format if self.quantized is not None and self.quantized.takes(path) else None

    def is_trained(self, path: str) -> bool:
        """Whether a layer's own weights are trained."""
        return self.trains == "full" and self.layers.takes(path) and not path.startswith(self.unreached)

    def is_trained_here(self, path: str) -> bool:
        """Whether a layer's own weights are trained on the training device."""
        return self.is_trained(path) and not path.startswith(self.offloaded_prefixes)

    def adapter_on(self, path: str) -> AdapterPlan | None:
        """Return the adapter that a layer has, or None."""
        if self.trains != "adapter" or self.adapter is None or path.startswith(self.unreached):
            return None
        return self.adapter if self.adapter.takes(path) else None


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of the backward pass: bytes in use beside weights and their gradients, and the gradients still missing.

    `later` counts the trained weights' bytes of the layers before this one, whose gradients are not computed yet.
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
        """Reference an array until the backward pass. The arrays of another tape are counted there."""
        storage = array.storage
        if id(storage) not in self.kept:
            self.kept[id(storage)] = storage
            self.kept_bytes += storage.num_bytes if storage.meter is self.meter else 0

    def mark(self, more_bytes: int) -> None:
        """Record a moment of the backward pass, with everything kept so far and `more_bytes` in use."""
        self.moments.append(Moment(self.kept_bytes + more_bytes, self.trained_bytes))

    def take_over(self, inner: Tape, *, gradient_bytes: int) -> None:
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
        everything = self.trained_bytes
        coming = 1 if gradients == "new" else 0
        there = 0 if gradients == "fused" else everything
        moments = ((m.in_use, there - coming * m.later) for m in self.moments)
        return max(moments, key=sum, default=(0, there))
