"""The format of a part, and the layers that have it. Torch-free: the memory estimate uses the same."""

from __future__ import annotations

from dataclasses import dataclass

from modules.quantization.spec import QuantizedFormat, Shape
from modules.settings.layer_filter import LayerFilter

# The embeddings of timesteps and sizes, and what projects a pooled state: small, and used by all layers after them.
_NEVER = frozenset({"time_embedding", "add_embedding", "class_embedding", "text_projection"})


@dataclass(frozen=True, slots=True)
class ChosenFormat:
    """A format, and the filter of the linear layers whose weights have it."""

    format: QuantizedFormat
    layers: LayerFilter

    def takes(self, path: str) -> bool:
        """Return whether the linear layer with a dotted name is quantized."""
        return self.layers.takes(path) and _NEVER.isdisjoint(path.split("."))

    def stored_bytes(self, shape: Shape) -> int:
        """Return the bytes of a layer's weight of shape (out, in)."""
        return self.format.stored_bytes(shape)
