"""Quantizing the frozen parts of a loaded model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from modules.data.cache.store import CacheStore, EntryStore
from modules.families.parts.single_file.denoiser_file import packed_layers
from modules.families.protocol import ModelFamily, Part
from modules.quantization.linear import quantize_layers, take_packed_layers
from modules.quantization.registry import ChosenFormat
from modules.system.errors import DarkroomError
from modules.system.paths import from_root


def quantize_parts(
    family: ModelFamily,
    formats: Mapping[str, ChosenFormat],
    *,
    without: Collection[str] = (),
    cache_dir: str = "",
    denoiser_file: str = "",
) -> None:
    """Quantize the parts that have a format, layer by layer and in place, except those in `without`.

    The same weights are always quantized to the same bytes, so a resumed run has the model of the interrupted one.
    `cache_dir` keeps quantized weights and their low-rank products, so that they are computed once; `denoiser_file` is
    the GGUF file of a denoiser whose format is GGUF. Raises DarkroomError where a part has no layer to quantize.
    """
    for name, chosen in formats.items():
        if name in without:
            continue
        part = family.parts[name]
        if chosen.format.is_stored:
            layers = _take_from_file(family.spec.name, part, chosen, from_root(denoiser_file))
        else:
            cache: EntryStore | None = CacheStore(from_root(cache_dir)) if cache_dir and chosen.residual else None
            layers = quantize_layers(part.module, chosen, cache=cache)
        if not layers:
            raise DarkroomError(
                f"{part.spec.label} is set to {chosen.format.label}, but none of its layers is quantized.",
                advice="Choose other quantized layers, or another weight dtype.",
            )


def _take_from_file(family: str, part: Part, chosen: ChosenFormat, path: Path) -> list[str]:
    config: Any = part.module.config
    packed = packed_layers(family, path, dict(config))
    if not packed:
        raise DarkroomError(
            f"{part.spec.label} is set to {chosen.format.label}, but {path.name} has no quantized weights.",
            advice="Choose a GGUF file as the denoiser file, or another weight dtype.",
        )
    return take_packed_layers(part.module, chosen, path, packed)
