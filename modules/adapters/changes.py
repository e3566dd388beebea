"""The change of a weight by an adapter of any kind, from its factors, in float32 (formulas: formats.md 5.1).

LoRA: `up @ down`; LoHa: the elementwise product of two low-rank products; LoKr: a Kronecker product; each times alpha
by rank. OFT: a rotation of the weight (`rotations`). A difference is added as it is. DoRA (Liu et al. 2024, eq. 5)
normalizes the changed weight to `dora_scale`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from modules.adapters.factors import BIASES, DIFFERENCES
from modules.adapters.rotations import oft_change
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_names import DORA_SCALE, DOWN, MID, OFT_BLOCKS, OFT_VECTORS, UP
from modules.system.errors import DarkroomError

Factors = Mapping[str, torch.Tensor]
Shape = tuple[int, ...]


def weight_shape(layer: nn.Module) -> Shape:
    """Return the shape of a layer's weight, which is no parameter of the layer if it is quantized."""
    if isinstance(layer, nn.Linear):
        return layer.out_features, layer.in_features
    weight = layer.weight
    assert isinstance(weight, torch.Tensor)
    return tuple(weight.shape)


def folded(layer: AdapterLayer) -> AdapterLayer:
    """Return a LoRA layer with the core of a Tucker LoRA multiplied into down: `up * mid * down` stays what it is.

    Raises RuntimeError if the factors do not fit each other.
    """
    mid = layer.factors.get(MID)
    if mid is None:
        return layer
    down = torch.einsum("ijkl,jc->ickl", mid.double(), layer.factors[DOWN].flatten(1).double()).to(torch.float32)
    return replace(layer, factors={DOWN: down, UP: layer.factors[UP]})


def plain_lora(layer: AdapterLayer, weight: Shape, *, where: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the down (rank, in, kernel) and up (out, rank, 1...) of a LoRA in float32, beside a weight of that shape.

    A Tucker core is in down. Raises DarkroomError if the factors of the file named `where` do not fit the weight.
    """
    out_channels, in_channels, *kernel = weight
    try:
        plain = folded(layer)
        down, up = (plain.factors[name].to(torch.float32) for name in (DOWN, UP))
        rank = up.shape[1]
        return down.reshape(rank, in_channels, *kernel), up.reshape(out_channels, rank, *(1 for _ in kernel))
    except (RuntimeError, IndexError):
        raise does_not_fit(layer, weight, where) from None


def bias_change(factors: Factors) -> torch.Tensor | None:
    """Return what is added to a layer's bias, of shape (out,); None without such a factor."""
    return next((factors[name] for name in sorted(BIASES & factors.keys())), None)


def weight_change(factors: Factors, alpha: float | None, weight: torch.Tensor) -> torch.Tensor | None:
    """Return what is added to a weight (out, in, kernel), in float32; None for factors that only change a bias.

    Raises RuntimeError if the factors do not fit each other or the weight.
    """
    names = factors.keys() - BIASES
    if not names:
        return None
    if names & DIFFERENCES:
        return next(factors[n] for n in sorted(names)).float().reshape(weight.shape)
    if names & {OFT_BLOCKS, OFT_VECTORS}:
        return oft_change(factors, alpha, weight)
    product, rank = _product({name: factor.float() for name, factor in factors.items()}, names, tuple(weight.shape))
    change = (product * (alpha / rank if alpha is not None and rank else 1.0)).reshape(weight.shape)
    magnitude = factors.get(DORA_SCALE)
    return change if magnitude is None else _normalized(weight.float() + change, magnitude.float()) - weight.float()


def _product(factors: Factors, names: frozenset[str] | set[str], weight: Shape) -> tuple[torch.Tensor, int | None]:
    """Return the product of low-rank factors, and their rank; None where there is none."""
    if DOWN in names:
        down, up, mid = factors[DOWN].flatten(1), factors[UP].flatten(1), factors.get(MID)
        if mid is not None:
            return torch.einsum("ijkl,jc,oi->ockl", mid, down, up), int(up.shape[1])
        return up @ down, int(up.shape[1])
    if "hada_w1_a" in names:
        one, other = (_hadamard_side(factors, f"w{n}", factors.get(f"hada_t{n}")) for n in (1, 2))
        return one * other, int(factors["hada_w1_b"].shape[0])
    first, second = (_kronecker_side(factors, n, weight[2:]) for n in (1, 2))
    rank = next((int(factors[n].shape[0]) for n in ("lokr_w1_b", "lokr_w2_b") if n in names), None)
    first = first.reshape(*first.shape[:2], *(1 for _ in second.shape[2:]))
    return torch.kron(first, second.contiguous()), rank


def _hadamard_side(factors: Factors, side: str, core: torch.Tensor | None) -> torch.Tensor:
    a, b = factors[f"hada_{side}_a"], factors[f"hada_{side}_b"]
    return a @ b if core is None else torch.einsum("ijkl,jr,ip->prkl", core, b, a)


def _kronecker_side(factors: Factors, number: int, kernel: Shape) -> torch.Tensor:
    name = f"lokr_w{number}"
    core = factors.get("lokr_t2") if number == 2 else None
    if name in factors:
        whole = factors[name]
    elif core is not None:
        whole = torch.einsum("ijkl,ip,jr->prkl", core, factors[f"{name}_a"], factors[f"{name}_b"])
    else:
        whole = factors[f"{name}_a"] @ factors[f"{name}_b"]
    return whole.reshape(whole.shape[0], -1, *kernel) if number == 2 else whole


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


def _normalized(changed: torch.Tensor, magnitude: torch.Tensor) -> torch.Tensor:
    """Return a changed weight with DoRA's norms: of each output where there is one per output, else of each input."""
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
