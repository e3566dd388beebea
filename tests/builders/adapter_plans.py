"""Adapters as the memory estimate sees them."""

from __future__ import annotations

from typing import Literal

from modules.adapters.lora import Lora, walk
from modules.memory.part_plan import AdapterPlan
from modules.settings.layer_filter import LayerFilter


def lora_plan(rank: int, item_bytes: int, entries: tuple[str, ...]) -> AdapterPlan:
    """A LoRA of a rank on the layers whose names contain one of `entries`."""
    return AdapterPlan(Lora(rank=rank), walk, item_bytes, LayerFilter(entries))


def dora_plan(settings: Lora, axis: Literal["outputs", "inputs"]) -> AdapterPlan:
    """A DoRA in float32 on the attention blocks, with the magnitudes of one axis."""
    return AdapterPlan(settings, walk, 4, LayerFilter(("attentions",)), decomposes=axis)
