"""The change of a weight by an adapter of any type, from its factors, in float32.

Each type has its formula (`AdapterType.change`). DoRA (Liu et al. 2024, eq. 5) normalizes the changed weight to
`dora_scale`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import cast

import torch
from torch import nn

from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_names import DOWN, MID, UP
from modules.formats.adapter_types import BIASES, DORA_SCALE, adapter_type
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory

Factors = Mapping[str, torch.Tensor]
Change = Callable[[Factors, float | None, torch.Tensor], torch.Tensor]
Shape = tuple[int, ...]


def weight_shape(layer: nn.Module) -> Shape:
    """Return the shape of a layer's weight, which is not a parameter of the layer if it is quantized."""
    if isinstance(layer, nn.Linear):
        return layer.out_features, layer.in_features
    weight = layer.weight
    assert isinstance(weight, torch.Tensor)
    return tuple(weight.shape)


def fold_tucker_core(layer: AdapterLayer) -> AdapterLayer:
    """Return a LoRA layer with the core of a Tucker LoRA multiplied into down: `up * mid * down` stays the same.

    Raises RuntimeError if the factors do not fit each other.
    """
    mid = layer.factors.get(MID)
    if mid is None:
        return layer
    down = torch.einsum("ijkl,jc->ickl", mid.double(), layer.factors[DOWN].flatten(1).double()).to(torch.float32)
    return replace(layer, factors={DOWN: down, UP: layer.factors[UP]})


def plain_lora(layer: AdapterLayer, weight: Shape, *, where: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the down (rank, in, kernel) and up (out, rank, 1...) of a LoRA on a weight of that shape, in float32.

    A Tucker core is multiplied into down. Raises DarkroomError if the factors of the file named `where` do not
    fit the weight.
    """
    out_channels, in_channels, *kernel = weight
    try:
        plain = fold_tucker_core(layer)
        down, up = (plain.factors[name].to(torch.float32) for name in (DOWN, UP))
        rank = up.shape[1]
        return down.reshape(rank, in_channels, *kernel), up.reshape(out_channels, rank, *(1 for _ in kernel))
    except (RuntimeError, IndexError):
        raise does_not_fit(layer, weight, where) from None


def bias_change(factors: Factors) -> torch.Tensor | None:
    """Return the change of a layer's bias, of shape (out,); None without such a factor."""
    return next((factors[name] for name in sorted(BIASES & factors.keys())), None)


def weight_change(factors: Factors, alpha: float | None, weight: torch.Tensor) -> torch.Tensor | None:
    """Return the change of a weight (out, in, kernel), in float32; None for factors that only change a bias.

    Raises RuntimeError if the factors do not fit each other or the weight, or if their change is not known.
    """
    plain = {name: factor for name, factor in factors.items() if name not in BIASES and name != DORA_SCALE}
    magnitude = factors.get(DORA_SCALE)
    if not plain and magnitude is None:
        return None
    kind = adapter_type(plain)
    if kind is None or not kind.change:
        raise RuntimeError(f"no change of a weight is known for {sorted(plain)}")
    change: torch.Tensor = _change_of(kind.change)(plain, alpha, weight)
    return change if magnitude is None else _normalize(weight.float() + change, magnitude.float()) - weight.float()


@cache
def _change_of(reference: str) -> Change:
    return cast(Change, load_factory(reference))


def by_rank(product: torch.Tensor, alpha: float | None, rank: int | None, weight: torch.Tensor) -> torch.Tensor:
    """Return a product of factors times alpha by rank, in the shape of a weight; without either, the product itself."""
    return (product * (alpha / rank if alpha is not None and rank else 1.0)).reshape(weight.shape)


def product_of_lora(factors: Factors, alpha: float | None, weight: torch.Tensor) -> torch.Tensor:
    """Return a LoRA's change of a weight: up times down, times alpha by rank; a Tucker core is between the two."""
    in_float32 = {name: factor.float() for name, factor in factors.items()}
    down, up, mid = in_float32[DOWN].flatten(1), in_float32[UP].flatten(1), in_float32.get(MID)
    product = up @ down if mid is None else torch.einsum("ijkl,jc,oi->ockl", mid, down, up)
    return by_rank(product, alpha, int(up.shape[1]), weight)


def difference(factors: Factors, alpha: float | None, weight: torch.Tensor) -> torch.Tensor:
    """Return a whole difference from a weight, as it is."""
    return next(factors[name] for name in sorted(factors)).float().reshape(weight.shape)


def is_per_output(magnitudes: Sequence[int], weight: Sequence[int]) -> bool:
    """Return whether DoRA's magnitudes of a shape belong to the outputs of a weight (out, in, ...), not its inputs."""
    return magnitudes[0] == weight[0] and math.prod(magnitudes) == weight[0]


def norms_of(weight: torch.Tensor, *, is_per_output: bool, has_eps: bool) -> torch.Tensor:
    """Return the norms of a weight (out, in, ...) for DoRA: of each output (out, 1, ...), or each input (1, in, ...).

    With `has_eps` the smallest step of its dtype at 1 is added, as in LyCORIS; a norm is never 0.
    """
    axes = [n for n in range(weight.ndim) if n != (0 if is_per_output else 1)]
    norms: torch.Tensor = torch.linalg.vector_norm(weight, dim=axes, keepdim=True)
    limits = torch.finfo(weight.dtype)
    return norms + limits.eps if has_eps else norms.clamp_min(limits.tiny)


def _normalize(changed: torch.Tensor, magnitude: torch.Tensor) -> torch.Tensor:
    """Return a changed weight with DoRA's norms: of each output if there is one per output, else of each input."""
    norms = norms_of(changed, is_per_output=is_per_output(magnitude.shape, changed.shape), has_eps=False)
    return changed * (magnitude.reshape(norms.shape) / norms)


def does_not_fit(layer: AdapterLayer, weight: Shape, where: str) -> DarkroomError:
    """Return the error for a layer of the file named `where` that does not fit a weight of that shape."""
    shapes = ", ".join(f"{name} {tuple(factor.shape)}" for name, factor in sorted(layer.factors.items()))
    return DarkroomError(
        f"{where} does not fit this model: the weight of {layer.part}.{layer.path} is {tuple(weight)}, the file has "
        f"{shapes}.",
        advice="Choose an adapter that was trained on this base model, or on one of the same size.",
    )
