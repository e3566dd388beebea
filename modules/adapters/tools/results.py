"""The result of a tool: the layers of a LoRA, what was lost, and the file with a record of what was done."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from modules.adapters.tools.low_rank import Reduction
from modules.families.kinds.conversion import Source
from modules.families.kinds.lora_conversion import write_lora
from modules.families.parts.single_file.models import CONFIGS_KEY
from modules.families.parts.single_file.sizes import configs_to_bring
from modules.formats.adapter_file import AdapterFile
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_names import DOWN
from modules.formats.adapter_types import DORA_SCALE
from modules.formats.lora_files import with_one_alpha
from modules.formats.safetensors_io import OnWritten
from modules.system.problem import count

TOOL_KEY = "darkroom_tool"
"""The metadata key with the tool that made a file, its inputs and its settings, as JSON."""
OnLayer = Callable[[int, int], None]
"""Called with how many layers are done and how many there are; may raise to cancel."""


@dataclass(frozen=True, eq=False)
class Losses:
    """The losses of a reduction by layer: the squared norms of the change and of the part left out, and the rank."""

    by_layer: Mapping[str, tuple[float, float, int]]

    @classmethod
    def of(cls, reduced: Mapping[str, Reduction]) -> Losses:
        """Return the losses of reduced layers by name."""
        return cls({name: (r.total, r.lost, r.change.rank) for name, r in reduced.items()})

    @property
    def relative_error(self) -> float:
        """The norm of everything that was left out, relative to the norm of all changes."""
        total = sum(t for t, _, _ in self.by_layer.values())
        return math.sqrt(sum(lost for _, lost, _ in self.by_layer.values()) / total) if total else 0.0

    @property
    def worst(self) -> tuple[str, float]:
        """The layer with the largest relative error, and that error."""
        errors = {name: math.sqrt(lost / total) for name, (total, lost, _) in self.by_layer.items() if total}
        return max(errors.items(), key=lambda item: item[1], default=("", 0.0))

    @property
    def sentence(self) -> str:
        """The ranks and errors, as a sentence."""
        if not self.by_layer:
            return ""
        ranks = [rank for _, _, rank in self.by_layer.values()]
        shown = f"rank {ranks[0]}" if min(ranks) == max(ranks) else f"ranks {min(ranks)} to {max(ranks)}"
        name, error = self.worst
        worst = f", at most {error:.2%} (of {name})" if error > 1e-5 else ""
        return f"{count(len(ranks), 'layer')} of {shown}. Error of the weights: {self.relative_error:.2%}{worst}."


@dataclass(frozen=True, eq=False)
class LoraResult:
    """The layers that a tool made, tensors that it keeps as they are, and sentences about what it did."""

    layers: tuple[AdapterLayer, ...]
    extra_tensors: Mapping[str, torch.Tensor]
    sentences: tuple[str, ...] = ()


def tool_metadata(tool: str, inputs: Sequence[Mapping[str, Any]], **settings: Any) -> dict[str, str]:
    """Return the metadata that record what a tool did: its name, its input files and its settings."""
    used = {name: value for name, value in settings.items() if value is not None}
    return {TOOL_KEY: json.dumps({"tool": tool, "inputs": list(inputs), **used}, ensure_ascii=False)}


def write_result(
    result: LoraResult,
    like: Source,
    out: Path,
    *,
    metadata: Mapping[str, str],
    dtype: torch.dtype | None,
    created: datetime,
    on_written: OnWritten | None = None,
) -> Path:
    """Write a tool's layers as an adapter file in kohya form, for the model of `like`; atomically.

    All LoRA layers get the same alpha, whatever their strength: diffusers ignores those that differ.
    """
    loras = [layer for layer in result.layers if DOWN in layer.factors and DORA_SCALE not in layer.factors]
    others = [layer for layer in result.layers if DOWN not in layer.factors or DORA_SCALE in layer.factors]
    layers = (*with_one_alpha(loras), *others)
    brought = configs_to_bring(like.kind.model, like.configs)
    if brought:
        metadata = {**metadata, CONFIGS_KEY: brought}
    content = AdapterFile(layers, result.extra_tensors, metadata, "kohya")
    source = replace(like, adapter=content, metadata=metadata)
    write_lora(source, out, "kohya", dtype=dtype, created=created, on_written=on_written)
    return out
