"""Writing adapter files in the forms that other programs read.

kohya form: `<layer>.lora_down.weight`, `<layer>.lora_up.weight` or other factors, and a scalar `<layer>.alpha`, layers
named with underscores. ComfyUI's is the same with dots, and A and B for down and up. diffusers/PEFT form:
`<part>.<layer>.lora_A.weight` and `.lora_B.weight`, no alpha: rank and alpha are in the metadata under
`lora_adapter_metadata`, which diffusers reads since 0.34.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch

from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_names import DOWN, LORA_FACTORS, MID, UP
from modules.formats.adapter_types import ALPHA, DORA_SCALE, missing_factor
from modules.formats.lazy_tensors import LazyTensor, lazy
from modules.formats.peft_settings import PEFT_SETTINGS

NameOf = Callable[[str, str], str]
_T = TypeVar("_T")


def to_kohya(layers: Iterable[AdapterLayer], name_of: NameOf) -> dict[str, torch.Tensor]:
    """Return the tensors in the kohya form, of every type of adapter; `name_of(part, path)` is the family's.

    A LoRA without an alpha gets its rank as alpha, which is the same strength.
    """
    tensors: dict[str, torch.Tensor] = {}
    for layer in layers:
        name = name_of(layer.part, layer.path)
        tensors |= {f"{name}.{factor}": tensor for factor, tensor in layer.factors.items()}
        alpha = layer.lora_alpha if DOWN in layer.factors else layer.alpha
        if alpha is not None:
            tensors[f"{name}.{ALPHA}"] = _alpha(alpha, layer.factors)
    return tensors


_LETTERS = {DOWN: "lora_A.weight", UP: "lora_B.weight"}


def with_letters(tensors: Mapping[str, _T]) -> dict[str, _T]:
    """Return the tensors of the kohya form with A and B for down and up, as files in ComfyUI's names have them.

    Layers with a Tucker core keep their names: only in these ComfyUI looks for the core.
    """
    cores = {name.removesuffix(f".{MID}") for name in tensors if name.endswith(f".{MID}")}

    def new_name(name: str) -> str:
        for factor, letter in _LETTERS.items():
            layer = name.removesuffix(f".{factor}")
            if layer != name and layer not in cores:
                return f"{layer}.{letter}"
        return name

    return {new_name(name): tensor for name, tensor in tensors.items()}


def _alpha(alpha: float, factors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return an alpha as a tensor, in the dtype of the layer's factors as other programs write it if that is exact.

    The alpha of factors in float8 is in float32, as `float8` writes it.
    """
    exact = torch.tensor(float(alpha))
    dtypes = (t.dtype for t in factors.values() if t.is_floating_point() and t.dtype.itemsize > 1)
    dtype = next(dtypes, exact.dtype)
    return exact.to(dtype) if exact.to(dtype) == exact else exact


def to_peft(
    layers: Iterable[AdapterLayer], name_of: NameOf, *, folds_alpha: bool = False
) -> tuple[dict[str, LazyTensor], dict[str, str]]:
    """Return the tensors in the PEFT form and their metadata; every layer must fit the form (`fits_peft`).

    diffusers since 0.34 reads alpha from the metadata. With `folds_alpha` it is folded into B, which gives every
    program the right strength, but the tensors then differ from the file that they came from.
    """
    tensors: dict[str, LazyTensor] = {}
    by_part: dict[str, dict[str, tuple[int, float]]] = {}
    doras = set()
    for layer in layers:
        name = name_of(layer.part, layer.path)
        tensors[f"{name}.lora_A.weight"] = lazy(flatten_down(layer.factors))
        tensors[f"{name}.lora_B.weight"] = _scale(layer.factors[UP], layer.scale if folds_alpha else 1.0)
        if DORA_SCALE in layer.factors:
            # transformers 5 loads a text encoder's tensors by this name alone; diffusers' own models take the other.
            end = ".weight" if layer.part.startswith("text_encoder") else ""
            tensors[f"{name}.lora_magnitude_vector{end}"] = _magnitudes(layer)
            doras.add(layer.part)
        # peft matches suffixes: without "text_model." a target matches the layouts before and after transformers 5.6.
        target = name.removeprefix(f"{layer.part}.").removeprefix("text_model.")
        alpha = layer.rank if folds_alpha else layer.lora_alpha
        by_part.setdefault(layer.part, {})[target] = (layer.rank, alpha)
    settings: dict[str, object] = {}
    for part, targets in by_part.items():
        settings |= {f"{part}.{name}": value for name, value in _peft_config(targets).items()}
        if part in doras:
            settings[f"{part}.use_dora"] = True
    return tensors, {"format": "pt", PEFT_SETTINGS: json.dumps(settings, sort_keys=True)}


def _peft_config(targets: Mapping[str, tuple[int, float]]) -> dict[str, object]:
    """Return the arguments of peft's LoraConfig for targets with their rank and alpha."""
    ranks = {target: rank for target, (rank, _) in targets.items()}
    alphas = {target: _whole(alpha) for target, (_, alpha) in targets.items()}
    rank, alpha = (Counter(values.values()).most_common(1)[0][0] for values in (ranks, alphas))
    settings: dict[str, object] = {
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(targets),
    }
    for name, values, usual in (("rank_pattern", ranks, rank), ("alpha_pattern", alphas, alpha)):
        if others := {target: value for target, value in sorted(values.items()) if value != usual}:
            settings[name] = others
    return settings


def _whole(alpha: float) -> float:
    return int(alpha) if float(alpha).is_integer() else alpha


def fits_peft(layer: AdapterLayer) -> bool:
    """Return whether the PEFT form can hold a layer: a LoRA, perhaps with a Tucker core or DoRA's scale per output."""
    factors = layer.factors
    if not {DOWN, UP} <= factors.keys() <= LORA_FACTORS:
        return False
    scale = factors.get(DORA_SCALE)
    return scale is None or (scale.ndim > 0 and scale.shape[0] == scale.numel() == factors[UP].shape[0])


def is_incomplete(layer: AdapterLayer) -> bool:
    """Return whether a layer lacks a factor (`missing_factor`), or is a LoRA with matrices of different ranks."""
    factors = layer.factors
    if missing_factor(factors):
        return True
    if DOWN not in factors:
        return False
    down, up, mid = factors[DOWN], factors[UP], factors.get(MID)
    if down.ndim < 2 or up.ndim < 2:
        return True
    if mid is None:
        return up.shape[1] != down.shape[0]
    return mid.ndim != 4 or tuple(mid.shape[:2]) != (up.shape[1], down.shape[0])


def flatten_down(factors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the down matrix (rank, in, height, width), with any Tucker core folded in.

    LyCORIS' Tucker form is up (out, r), mid (r, r, height, width) and down (r, in); diffusers and peft have no core.
    """
    down, mid = factors[DOWN], factors.get(MID)
    if mid is None:
        return down
    return torch.einsum("ijkl,jm->imkl", mid.float(), down.flatten(1).float()).to(down.dtype)


def _magnitudes(layer: AdapterLayer) -> LazyTensor:
    """Return DoRA's scale of shape (out, 1, ...) as peft's magnitudes: (out,), or (1, out, 1, 1) for a convolution."""
    scale = layer.factors[DORA_SCALE]
    return lazy(scale.reshape(1, -1, 1, 1) if layer.factors[DOWN].ndim == 4 else scale.reshape(-1))


def _scale(tensor: torch.Tensor, scale: float) -> LazyTensor:
    if scale == 1.0:
        return lazy(tensor)
    return lazy(tensor).then(tensor.shape, lambda made: (made.float() * scale).to(made.dtype))


def with_one_alpha(layers: Sequence[AdapterLayer]) -> list[AdapterLayer]:
    """Return LoRA layers that all have their most common alpha; the up matrices of the others are scaled instead."""
    alphas = Counter(layer.lora_alpha for layer in layers)
    if len(alphas) < 2:
        return list(layers)
    usual, _ = alphas.most_common(1)[0]
    return [_with_alpha(layer, usual) for layer in layers]


def _with_alpha(layer: AdapterLayer, alpha: float) -> AdapterLayer:
    if layer.lora_alpha == alpha:
        return layer
    scaled = layer.factors[UP].float() * (layer.lora_alpha / alpha)
    return replace(layer, factors={**layer.factors, UP: scaled}, alpha=alpha)


def ranks_and_alphas(layers: Iterable[AdapterLayer]) -> Counter[tuple[int, float]]:
    """Return how many LoRA layers have each pair of rank and alpha."""
    return Counter((layer.rank, layer.lora_alpha) for layer in layers if DOWN in layer.factors)


def rank_and_alpha(layers: Iterable[AdapterLayer]) -> tuple[int, float] | None:
    """Return the rank and the alpha that represent a file with these layers; None if no layer is a LoRA.

    The rank is the largest one, as sd-scripts states it for a file with several ranks; alpha is the most frequent one
    of the layers with this rank.
    """
    counts = ranks_and_alphas(layers)
    return max(counts, key=lambda pair: (pair[0], counts[pair], pair[1])) if counts else None
