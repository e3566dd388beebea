"""What is known of a format of quantized weights, without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Shape = tuple[int, ...]
FLOAT32_BYTES = 4
Rounding = Literal["", "int8", "float8"]


@dataclass(frozen=True, slots=True)
class Residual:
    """The low-rank product beside each quantized weight: its rank, and the dtype of its two matrices."""

    rank: int
    dtype: str

    def rank_of(self, shape: Shape) -> int:
        """Return the rank of the product beside a weight of a shape: at most what the weight has."""
        return min(self.rank, *shape)

    def stored_bytes(self, shape: Shape) -> int:
        """Return the bytes of the product beside a weight of a shape (out, in)."""
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
