"""Reading and writing LoRA weights in the two layouts that other programs read.

kohya layout: `<layer>.lora_down.weight`, `<layer>.lora_up.weight` and a scalar `<layer>.alpha`, layers named with
underscores. diffusers/PEFT layout: `<part>.<layer>.lora_A.weight`, `.lora_B.weight`, no alpha: it is folded into B,
and rank and alpha are in the metadata under `lora_adapter_metadata`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import torch

from modules.formats.adapter_layers import AdapterLayer, lora_layer
from modules.formats.adapter_names import DOWN, UP
from modules.formats.lazy_tensors import LazyTensor, lazy
from modules.system.errors import DarkroomError

NameOf = Callable[[str, str], str]


def to_kohya(layers: Iterable[AdapterLayer], name_of: NameOf) -> dict[str, torch.Tensor]:
    """Return the tensors in the kohya layout; `name_of(part, path)` is the family's."""
    tensors: dict[str, torch.Tensor] = {}
    for layer in layers:
        name = name_of(layer.part, layer.path)
        tensors[f"{name}.lora_down.weight"] = layer.factors[DOWN]
        tensors[f"{name}.lora_up.weight"] = layer.factors[UP]
        tensors[f"{name}.alpha"] = torch.tensor(layer.lora_alpha)
    return tensors


def to_peft(layers: Iterable[AdapterLayer], name_of: NameOf) -> tuple[dict[str, LazyTensor], dict[str, str]]:
    """Return the tensors in the PEFT layout, alpha folded into B as each is created, and their metadata."""
    tensors: dict[str, LazyTensor] = {}
    ranks: dict[str, dict[str, int]] = {}
    for layer in layers:
        name = name_of(layer.part, layer.path)
        tensors[f"{name}.lora_A.weight"] = lazy(layer.factors[DOWN])
        tensors[f"{name}.lora_B.weight"] = _scaled(layer.factors[UP], layer.scale)
        # peft matches suffixes: without "text_model." a target matches the layouts before and after transformers 5.6.
        target = name.removeprefix(f"{layer.part}.").removeprefix("text_model.")
        ranks.setdefault(layer.part, {})[target] = layer.rank
    settings: dict[str, object] = {}
    for part, by_target in ranks.items():
        [(rank, _)] = Counter(by_target.values()).most_common(1)
        others = {target: r for target, r in sorted(by_target.items()) if r != rank}
        settings |= {
            f"{part}.r": rank,
            f"{part}.lora_alpha": rank,
            f"{part}.lora_dropout": 0.0,
            f"{part}.bias": "none",
            f"{part}.target_modules": sorted(by_target),
        }
        if others:
            settings |= {f"{part}.rank_pattern": others, f"{part}.alpha_pattern": others}
    return tensors, {"format": "pt", "lora_adapter_metadata": json.dumps(settings, sort_keys=True)}


def _scaled(tensor: torch.Tensor, scale: float) -> LazyTensor:
    return lazy(tensor).then(tensor.shape, lambda made: made * scale)


def from_kohya(tensors: Mapping[str, torch.Tensor], names: Mapping[str, tuple[str, str]]) -> list[AdapterLayer]:
    """Return the layers of a kohya file. `names` maps kohya names to (part, path).

    A missing alpha means a scale of 1. Raises DarkroomError for layers that the model does not have, and for a file
    that is not a plain LoRA.
    """
    _require_plain(tensors, _KOHYA_ENDS)
    stems = sorted({key.split(".", 1)[0] for key in tensors})
    strangers = [s for s in stems if s not in names]
    if strangers:
        raise DarkroomError(
            f"The LoRA has {len(strangers)} layers this model does not have; the first is {strangers[0]}."
        )
    layers = []
    for stem in stems:
        down, up = _pair(tensors, f"{stem}.lora_down.weight", f"{stem}.lora_up.weight")
        alpha = tensors.get(f"{stem}.alpha")
        part, path = names[stem]
        layers.append(lora_layer(part, path, down, up, None if alpha is None else float(alpha)))
    return layers


def from_peft(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> list[AdapterLayer]:
    """Return the layers of a file in diffusers' layout, with PEFT's names or those of diffusers before 0.22.

    Alpha is the rank where the metadata has no other. Raises DarkroomError for a file that is not a plain LoRA.
    """
    renamed = {_modern(name): tensor for name, tensor in tensors.items()}
    _require_plain(renamed, _PEFT_ENDS)
    settings = _adapter_settings(metadata)
    layers = []
    for name in sorted(n for n in renamed if n.endswith(_DOWN)):
        stem = name.removesuffix(_DOWN)
        down, up = _pair(renamed, name, f"{stem}{_UP}")
        part, _, path = stem.partition(".")
        layers.append(lora_layer(part, path, down, up, _peft_alpha(settings, part, path, int(down.shape[0]))))
    return layers


_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"
_KOHYA_ENDS = (".lora_down.weight", ".lora_up.weight", ".alpha")
_PEFT_ENDS = (_DOWN, _UP)
# Before PEFT: `attn1.processor.to_q_lora.down.weight`, then `attn1.to_q.lora.down.weight`.
_OLD = re.compile(r"(?:\.processor)?\.(to_[qkv]|to_out)_lora\.(down|up)\.weight$")


def _modern(name: str) -> str:
    layer = _OLD.sub(lambda m: f".{m[1] + '.0' if m[1] == 'to_out' else m[1]}.lora.{m[2]}.weight", name)
    layer = layer.replace(".lora_linear_layer.", ".lora.")
    return layer.replace(".lora.down.weight", _DOWN).replace(".lora.up.weight", _UP)


def _require_plain(tensors: Iterable[str], ends: tuple[str, ...]) -> None:
    strange = sorted(n for n in tensors if not n.endswith(ends))
    if strange:
        raise DarkroomError(
            f"The file is not a plain LoRA: {len(strange)} of its tensors are of another kind, such as {strange[0]}.",
            advice="DoRA, LoHa, LoKr, OFT, Tucker factors and bundled embeddings are not supported here.",
        )


def _pair(tensors: Mapping[str, torch.Tensor], down: str, up: str) -> tuple[torch.Tensor, torch.Tensor]:
    lacking = next((n for n in (down, up) if n not in tensors), "")
    if lacking:
        raise DarkroomError(f"The LoRA is incomplete: {lacking} is missing.", advice="Download it again.")
    a, b = tensors[down], tensors[up]
    if a.ndim < 2 or b.ndim < 2 or b.shape[1] != a.shape[0]:
        raise DarkroomError(f"The LoRA is damaged: {down} {tuple(a.shape)} and {up} {tuple(b.shape)} do not match.")
    return a, b


def _adapter_settings(metadata: Mapping[str, str]) -> dict[str, object]:
    try:
        settings = json.loads(metadata.get("lora_adapter_metadata", "{}"))
    except (ValueError, RecursionError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _peft_alpha(settings: Mapping[str, object], part: str, path: str, rank: int) -> float:
    pattern = settings.get(f"{part}.alpha_pattern")
    if isinstance(pattern, dict):
        for target, alpha in pattern.items():
            if isinstance(alpha, int | float) and (path == target or path.endswith(f".{target}")):
                return float(alpha)
    alpha = settings.get(f"{part}.lora_alpha")
    return float(alpha) if isinstance(alpha, int | float) else float(rank)
