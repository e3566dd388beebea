"""The format of a part, and the layers that have it. Torch-free: the memory estimate uses the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from modules.quantization.spec import QuantizedFormat, Residual, Shape
from modules.settings.layer_filter import LayerFilter

# The embeddings of timesteps and sizes, and what projects a pooled state: small, and used by all layers after them.
_NEVER = frozenset({"time_embedding", "add_embedding", "class_embedding", "text_projection"})


@dataclass(frozen=True, slots=True)
class ChosenFormat:
    """A format, and the filter of the linear layers whose weights have it.

    With a `residual` each has a low-rank product beside it. Of a format that a file has stored, `stored` are the bytes
    of each layer's weight in the file, by name; None while the file is not known.
    """

    format: QuantizedFormat
    layers: LayerFilter
    residual: Residual | None = None
    stored: Mapping[str, int] | None = field(default=None, hash=False)

    def takes(self, path: str) -> bool:
        """Return whether the linear layer with a dotted name is quantized."""
        is_there = self.stored is None or path in self.stored
        return is_there and self.layers.takes(path) and _NEVER.isdisjoint(path.split("."))

    def stored_bytes(self, path: str, shape: Shape) -> int:
        """Return the bytes of the weight of shape (out, in) of the layer `path`, with its low-rank product."""
        own = self.format.stored_bytes(shape) if self.stored is None else self.stored[path]
        return own + (self.residual.stored_bytes(shape) if self.residual is not None else 0)
