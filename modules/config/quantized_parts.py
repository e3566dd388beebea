"""The parts of a config's model whose weights are quantized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from modules.config.schema import Config
from modules.config.sections.quantization import Quantization, quantized_layers
from modules.config.sections.training import SIXTEEN_BITS
from modules.families.separate_parts import file_of_part
from modules.families.spec import PartSpec
from modules.quantization.registry import FORMATS, ChosenFormat, Residual
from modules.settings.layer_filter import EVERYTHING


@dataclass(frozen=True, slots=True)
class QuantizedParts:
    """The formats of the quantized parts by name, and the dtype of their other weights.

    `cache_dir` keeps weights together with their low-rank product; `files` are the files of parts that are not read
    from the base model.
    """

    formats: Mapping[str, ChosenFormat] = field(default_factory=dict)
    other_dtype: str = "float32"
    cache_dir: str = ""
    files: Mapping[str, str] = field(default_factory=dict)

    def plain_dtype(self, part: str, dtype: str) -> str:
        """Return the dtype of a part's weights that are not quantized; `dtype` is the one in its settings."""
        return self.other_dtype if part in self.formats else dtype


NOTHING_QUANTIZED = QuantizedParts()


def quantized_parts(config: Config) -> QuantizedParts:
    """Return the quantized parts of a config; the dtype of their other weights follows from the training precision."""
    filters = {"denoiser": quantized_layers(config.quantization, config.family.denoiser.model.layers)}
    residual = residual_of(config.quantization)
    formats = {
        part.name: ChosenFormat(
            FORMATS[dtype],
            filters.get(part.role, EVERYTHING),
            None if FORMATS[dtype].is_stored else residual,
            never=part.model.never_quantized,
        )
        for part in config.family.parts
        if (dtype := config.part(part.name).dtype) in FORMATS
    }
    precision = config.training.precision
    return QuantizedParts(
        formats,
        precision if precision in SIXTEEN_BITS else "float32",
        config.quantization.cache_dir.strip() or str(Path(config.general.cache_dir) / "quantization"),
        {part.name: file for part in config.family.parts if (file := part_source(config, part))},
    )


def residual_of(settings: Quantization) -> Residual | None:
    """Return the settings of the low-rank product kept with each quantized weight; None without one."""
    return None if settings.svd_dtype == "none" else Residual(settings.svd_rank, settings.svd_dtype)


def part_source(config: Config, part: PartSpec) -> str:
    """Return the file that a part is read from: its own, or for a denoiser the base model; empty for neither."""
    base = config.model.base_model.strip() if part.role == "denoiser" else ""
    return part_file(config, part) or base


def part_file(config: Config, part: PartSpec) -> str:
    """Return the file that a part is read from in place of the base model's weights; empty without one."""
    return file_of_part(part, config.part(part.name).file, config.model.base_model)
