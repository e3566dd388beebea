"""LoRA weights in the two forms that other programs read, and back.

kohya form: `<layer>.lora_down.weight`, `<layer>.lora_up.weight` and a scalar `<layer>.alpha`, layers named with
underscores. diffusers/PEFT form: `<part>.<layer>.lora_A.weight`, `.lora_B.weight`, no alpha: it is folded into B, and
rank and alpha stand in the metadata under `lora_adapter_metadata`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch

from modules.errors import DarkroomError

NameOf = Callable[[str, str], str]


@dataclass(frozen=True, eq=False)
class LoraLayerWeights:
    """The factors of one layer: down (rank, in, ...) and up (out, rank, ...), with the alpha that scales them."""

    part: str
    path: str
    down: torch.Tensor
    up: torch.Tensor
    alpha: float

    @property
    def rank(self) -> int:
        """The number of rows of the down matrix."""
        return int(self.down.shape[0])


def to_kohya(layers: Iterable[LoraLayerWeights], name_of: NameOf) -> dict[str, torch.Tensor]:
    """Return the tensors of the kohya form; `name_of(part, path)` is the family's."""
    tensors: dict[str, torch.Tensor] = {}
    for layer in layers:
        name = name_of(layer.part, layer.path)
        tensors[f"{name}.lora_down.weight"] = layer.down
        tensors[f"{name}.lora_up.weight"] = layer.up
        tensors[f"{name}.alpha"] = torch.tensor(float(layer.alpha))
    return tensors


def to_peft(layers: Iterable[LoraLayerWeights], name_of: NameOf) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors of the PEFT form, alpha folded into B, and the metadata that belongs to them."""
    tensors: dict[str, torch.Tensor] = {}
    parts: dict[str, tuple[int, list[str]]] = {}
    for layer in layers:
        name = name_of(layer.part, layer.path)
        tensors[f"{name}.lora_A.weight"] = layer.down
        tensors[f"{name}.lora_B.weight"] = layer.up * (layer.alpha / layer.rank)
        # peft matches ends of names: without "text_model." a target fits the layouts before and after transformers 5.6.
        target = name.removeprefix(f"{layer.part}.").removeprefix("text_model.")
        parts.setdefault(layer.part, (layer.rank, []))[1].append(target)
    settings: dict[str, object] = {}
    for part, (rank, targets) in parts.items():
        settings |= {
            f"{part}.r": rank,
            f"{part}.lora_alpha": rank,
            f"{part}.lora_dropout": 0.0,
            f"{part}.bias": "none",
            f"{part}.target_modules": sorted(targets),
        }
    return tensors, {"format": "pt", "lora_adapter_metadata": json.dumps(settings, sort_keys=True)}


def from_kohya(tensors: Mapping[str, torch.Tensor], names: Mapping[str, tuple[str, str]]) -> list[LoraLayerWeights]:
    """Return the layers of a kohya file. `names` maps kohya names to (part, path).

    A missing alpha means a scale of 1. Raises DarkroomError naming layers that the model does not have.
    """
    stems = sorted({key.split(".", 1)[0] for key in tensors})
    strangers = [s for s in stems if s not in names]
    if strangers:
        raise DarkroomError(
            f"The LoRA has {len(strangers)} layers this model does not have; the first is {strangers[0]}."
        )
    layers = []
    for stem in stems:
        down, up = tensors[f"{stem}.lora_down.weight"], tensors[f"{stem}.lora_up.weight"]
        alpha = tensors.get(f"{stem}.alpha")
        part, path = names[stem]
        layers.append(LoraLayerWeights(part, path, down, up, float(alpha) if alpha is not None else down.shape[0]))
    return layers
