"""Adapter files as other programs write them, for tiny models, and models with such a file in their weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from modules.families.protocol import ModelFamily
from tests.builders.pipelines import load_tiny

Place = tuple[str, str]
Factors = Mapping[str, torch.Tensor]
_FILES = {"unet": "diffusion_pytorch_model.safetensors"}


def places(family: ModelFamily, *kinds: type[nn.Module]) -> list[Place]:
    """The part and the dotted name of every layer of some kinds in the UNet and the text encoders."""
    kinds = kinds or (nn.Linear, nn.Conv2d)
    parts = {n: p for n, p in family.parts.items() if p.spec.role != "vae"}
    return [(n, path) for n, p in parts.items() for path, m in p.module.named_modules() if isinstance(m, kinds)]


class Filled:
    """Factors of random values, small enough that a model stays sane; always the same."""

    def __init__(self, seed: int = 0) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator) * 0.1


def lora_factors(weight: torch.Tensor, rank: int, filled: Filled, *, tucker: bool = False) -> dict[str, torch.Tensor]:
    """The matrices of a LoRA beside a weight, of Tucker's form where it is a kernel and that is wanted."""
    out_channels, in_channels, *kernel = weight.shape
    if tucker and kernel and kernel[0] > 1:
        down, up = filled(rank, in_channels, 1, 1), filled(out_channels, rank, 1, 1)
        return {"lora_down.weight": down, "lora_mid.weight": filled(rank, rank, *kernel) * 5, "lora_up.weight": up}
    ones = (1 for _ in kernel)
    return {"lora_down.weight": filled(rank, in_channels, *kernel), "lora_up.weight": filled(out_channels, rank, *ones)}


def whole_lora(
    model: Path,
    path: Path,
    *,
    rank_of: Callable[[Place], int] = lambda place: 4,
    alpha: float | None = 2.0,
    takes: Callable[[Place], bool] = lambda place: True,
    tucker: bool = False,
    extra: Callable[[ModelFamily, Filled], Mapping[str, torch.Tensor]] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """Write a kohya file with a LoRA on every layer of a model, text projection included, and return its path."""
    family, filled = load_tiny(model), Filled()
    tensors: dict[str, torch.Tensor] = {}
    for part, layer in places(family):
        if not takes((part, layer)):
            continue
        name = family.lora_naming.kohya_name(part, layer)
        weight = family.parts[part].module.get_submodule(layer).weight
        assert isinstance(weight, torch.Tensor)
        factors = lora_factors(weight, rank_of((part, layer)), filled, tucker=tucker)
        tensors |= {f"{name}.{factor}": tensor for factor, tensor in factors.items()}
        if alpha is not None:
            tensors[f"{name}.alpha"] = torch.tensor(alpha)
    tensors |= extra(family, filled) if extra is not None else {}
    save_file({name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}, path)
    return path


def merged(model: Path, folder: Path, file: Path, changes: Iterable[tuple[Place, str, torch.Tensor]] = ()) -> Path:
    """Write a copy of a model with a plain or Tucker LoRA file added to its weights, by the formula, and return it.

    `changes` are further additions: a place, "weight" or "bias", and what is added.
    """
    family, tensors = load_tiny(model), {n: t.double() for n, t in load_file(file).items()}
    added: list[tuple[Place, str, torch.Tensor]] = list(changes)
    for place in places(family):
        name = family.lora_naming.kohya_name(*place)
        if f"{name}.lora_down.weight" not in tensors:
            continue
        down, up = tensors[f"{name}.lora_down.weight"], tensors[f"{name}.lora_up.weight"]
        mid = tensors.get(f"{name}.lora_mid.weight")
        if mid is None:
            change = (up.flatten(1) @ down.flatten(1)).reshape(up.shape[0], *down.shape[1:])
        else:
            change = torch.einsum("or,rqkl,qi->oikl", up.flatten(1), mid, down.flatten(1))
        scale = float(tensors[f"{name}.alpha"]) / down.shape[0] if f"{name}.alpha" in tensors else 1.0
        added.append((place, "weight", scale * change))
    shutil.copytree(model, folder)
    for part in {place[0] for place, _, _ in added}:
        weights_file = folder / part / _FILES.get(part, "model.safetensors")
        weights: dict[str, Any] = load_file(weights_file)
        for (owner, path), which, change in added:
            if owner == part:
                [name] = [n for n in weights if n == f"{path}.{which}" or n.endswith(f"text_model.{path}.{which}")]
                weights[name] = (weights[name].double() + change.reshape(weights[name].shape)).float()
        save_file(weights, weights_file, metadata={"format": "pt"})
    return folder
