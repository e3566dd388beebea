"""Quantizing the frozen parts of a loaded model."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from modules.families.protocol import ModelFamily
from modules.quantization.chosen import ChosenFormat
from modules.quantization.layers import quantize_layers
from modules.system.errors import DarkroomError


def quantize_parts(family: ModelFamily, formats: Mapping[str, ChosenFormat], *, without: Collection[str] = ()) -> None:
    """Quantize the parts that have a format, layer by layer and in place, except those in `without`.

    The same weights are always quantized to the same bytes, so a resumed run has the model of the interrupted one.
    Raises DarkroomError where a part has no layer to quantize.
    """
    for name, chosen in formats.items():
        part = family.parts[name]
        if name not in without and not quantize_layers(part.module, chosen):
            raise DarkroomError(
                f"{part.spec.label} is set to {chosen.format.label}, but none of its layers is quantized.",
                advice="Choose other quantized layers, or another weight dtype.",
            )
