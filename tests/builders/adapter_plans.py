"""Adapters as the memory estimate sees them."""

from __future__ import annotations

from typing import Literal

from modules.adapters.lora import Lora, factor_shapes, fixed_shapes, walk
from modules.adapters.spec import AdapterMemory
from modules.memory.part_plan import AdapterPlan
from modules.settings.layer_filter import LayerFilter

LORA_MEMORY = AdapterMemory(factor_shapes, walk, fixed_shapes)


def lora_plan(rank: int, item_bytes: int, entries: tuple[str, ...]) -> AdapterPlan:
    """A LoRA of a rank on the layers whose names contain one of `entries`."""
    return AdapterPlan(Lora(rank=rank), LORA_MEMORY, item_bytes, LayerFilter(entries))


def dora_plan(settings: Lora, axis: Literal["outputs", "inputs"]) -> AdapterPlan:
    """A DoRA in float32 on the attention blocks, with the magnitudes of one axis."""
    return AdapterPlan(settings, LORA_MEMORY, 4, LayerFilter(("attentions",)), decomposes=axis)
