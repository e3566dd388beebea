"""Quantizing the frozen parts of a loaded model."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from modules.data.cache.store import CacheStore, EntryStore
from modules.families.parts.single_file.packed_weights import PackedWeights, packed_weights
from modules.families.protocol import ModelFamily, Part
from modules.families.spec import FamilySpec
from modules.quantization.linear import quantize_layers
from modules.quantization.registry import ChosenFormat
from modules.system.errors import DarkroomError
from modules.system.paths import from_root


def quantize_parts(
    family: ModelFamily,
    formats: Mapping[str, ChosenFormat],
    *,
    without: Collection[str] = (),
    cache_dir: str = "",
    files: Mapping[str, str] | None = None,
) -> None:
    """Quantize the parts that have a format, layer by layer and in place, except those in `without`.

    The same weights are always quantized to the same bytes, so a resumed run has the model of the interrupted one.
    `cache_dir` keeps quantized weights and their low-rank products, so that they are computed once; `files` are those
    that parts are read from, whose packed weights are used as they are. Raises DarkroomError where a part has no layer
    to quantize.
    """
    for name, chosen in formats.items():
        if name in without:
            continue
        part = family.parts[name]
        packed = _packed_in_file(family.spec, part, chosen, (files or {}).get(name, ""))
        is_cached = bool(cache_dir) and chosen.residual is not None
        cache: EntryStore | None = CacheStore(from_root(cache_dir)) if is_cached else None
        layers = quantize_layers(part.module, chosen, cache=cache, packed=packed)
        if not layers:
            raise DarkroomError(
                f"{part.spec.label} is set to {chosen.format.label}, but none of its layers is quantized.",
                advice="Choose other quantized layers, or another weight dtype.",
            )


def _packed_in_file(spec: FamilySpec, part: Part, chosen: ChosenFormat, file: str) -> PackedWeights:
    path = from_root(file)
    weights = packed_weights(spec, part.spec, path, part.module, chosen) if file and not path.is_dir() else {}
    if chosen.format.is_stored and not weights:
        raise DarkroomError(
            f"{part.spec.label} is set to {chosen.format.label}, but {path.name or 'it'} has no quantized weights.",
            advice="Choose a GGUF file as the file of the part, or another weight dtype.",
        )
    return weights
