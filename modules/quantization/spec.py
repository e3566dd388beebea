"""The record of a format of quantized weights, and the format that a part of a model has.

The memory estimate uses the same records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from modules.settings.layer_filter import LayerFilter

Shape = tuple[int, ...]
FLOAT32_BYTES = 4
Rounding = Literal["", "int8", "float8"]


@dataclass(frozen=True, slots=True)
class Residual:
    """The low-rank product that is added to each quantized weight: its rank, and the dtype of its two matrices."""

    rank: int
    dtype: str

    def rank_of(self, shape: Shape) -> int:
        """Return the rank of the product of a weight of a shape: at most the weight's own rank."""
        return min(self.rank, *shape)

    def stored_bytes(self, shape: Shape) -> int:
        """Return the bytes of the product of a weight of a shape (out, in)."""
        return self.rank_of(shape) * sum(shape) * (FLOAT32_BYTES if self.dtype == "float32" else 2)


@dataclass(frozen=True, slots=True)
class QuantizedFormat:
    """A format of the weights of frozen linear layers.

    `packing` names what packs and unpacks a weight, as "module:name" (`packing.Packing`). `stored_bytes` returns the
    bytes of a weight of a shape (out, in), with its scales. `rounds_inputs`: the inputs of a layer are rounded, too,
    and the product is computed in that format where the device can. `working_bytes` is the number of bytes per element
    that unpacking a weight to float32 needs at its peak. `is_stored`: the weights are packed in the file of the model,
    so `packing` is empty, and their bytes are in the file's header. `devices` are the kinds of devices it runs on, and
    `backends` describes how, for the documents.
    """

    name: str
    label: str
    help: str
    packing: str
    stored_bytes: Callable[[Shape], int]
    working_bytes: int
    devices: frozenset[str]
    backends: str
    rounds_inputs: Rounding = ""
    is_stored: bool = False

    def unpacking_bytes(self, item_bytes: int) -> int:
        """Return the peak of unpacking a weight to a dtype, per element: its float32 values are there meanwhile."""
        return max(self.working_bytes, FLOAT32_BYTES + item_bytes if item_bytes < FLOAT32_BYTES else FLOAT32_BYTES)


@dataclass(frozen=True, slots=True)
class ChosenFormat:
    """A format, and the filter of the linear layers whose weights have it.

    With a `residual` each weight has a low-rank product, too. For a format whose weights are packed in a file, `stored`
    are the bytes of each layer's weight there, by name; None while the file is not known. Layers with one of the steps
    in `never` in their dotted names are not quantized.
    """

    format: QuantizedFormat
    layers: LayerFilter
    residual: Residual | None = None
    stored: Mapping[str, int] | None = field(default=None, hash=False)
    never: frozenset[str] = frozenset()

    def takes(self, path: str) -> bool:
        """Return whether the linear layer with a dotted name is quantized."""
        is_there = self.stored is None or path in self.stored
        return is_there and self.layers.takes(path) and self.never.isdisjoint(path.split("."))

    def stored_bytes(self, path: str, shape: Shape) -> int:
        """Return the bytes of the weight of shape (out, in) of the layer `path`, with its low-rank product."""
        packed_bytes = self.format.stored_bytes(shape) if self.stored is None else self.stored[path]
        return packed_bytes + (self.residual.stored_bytes(shape) if self.residual is not None else 0)
