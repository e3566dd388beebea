"""The parts of a config's model whose weights are quantized. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from modules.config.schema import Config
from modules.config.sections.quantization import quantized_layers
from modules.families.registry import FAMILIES
from modules.quantization.chosen import ChosenFormat
from modules.quantization.registry import FORMATS
from modules.settings.layer_filter import EVERYTHING

_SIXTEEN_BITS = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class QuantizedParts:
    """The formats of the quantized parts by name, and the dtype of their other weights."""

    formats: Mapping[str, ChosenFormat] = field(default_factory=dict)
    other_dtype: str = "float32"

    def plain_dtype(self, part: str, dtype: str) -> str:
        """Return the dtype of a part's weights that are not quantized; `dtype` is the one in its settings."""
        return self.other_dtype if part in self.formats else dtype


NOTHING_QUANTIZED = QuantizedParts()


def quantized_parts(config: Config) -> QuantizedParts:
    """Return the quantized parts of a config: their other weights are in the precision's dtype."""
    filters = {"denoiser": quantized_layers(config.quantization)}
    formats = {
        part.name: ChosenFormat(FORMATS[dtype], filters.get(part.role, EVERYTHING))
        for part in FAMILIES[config.model.family].parts
        if (dtype := config.part(part.name).dtype) in FORMATS
    }
    precision = config.training.precision
    return QuantizedParts(formats, precision if precision in _SIXTEEN_BITS else "float32")
