"""An imitation of CUDA's autocast for tensors on the meta device ("Autocast Op Reference" of PyTorch).

torch's own autocast does not support that device. The weights, autocast's results and float32 have a dtype each, so the
casts in a module's code show what they cast to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from modules.memory.recording import Kind

WEIGHTS, COMPUTED, SINGLE = torch.float64, torch.float16, torch.float32
"""The dtypes that stand for the weights' dtype, the dtype of autocast's results, and float32."""

ATTENTION = "scaled_dot_product_attention"
NORM = "rms_norm_of_weights"
"""An RMS norm that returns the dtype of its weights: it casts by itself where autocast is on (`trace.py`)."""
_HALF = frozenset(
    [
        "linear",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "matmul",
        "__matmul__",
        "__rmatmul__",
        "mm",
        "bmm",
        "addmm",
        "addbmm",
        "baddbmm",
        "einsum",
        "prelu",
        "chain_matmul",
        "multi_dot",
    ]
)
_SINGLE = frozenset(
    [
        "acos",
        "asin",
        "cosh",
        "erfinv",
        "exp",
        "expm1",
        "log",
        "log10",
        "log2",
        "log1p",
        "reciprocal",
        "rsqrt",
        "sinh",
        "tan",
        "pow",
        "__pow__",
        "__rpow__",
        "softplus",
        "layer_norm",
        "group_norm",
        "rms_norm",
        "norm",
        "cosine_similarity",
        "softmax",
        "log_softmax",
        "cumsum",
        "cumprod",
        "prod",
        "sum",
        "l1_loss",
        "mse_loss",
        "smooth_l1_loss",
        "cdist",
    ]
)
_CASTS: Mapping[torch.dtype, Kind] = {WEIGHTS: "weights", COMPUTED: "compute", SINGLE: "float32"}
_TO = frozenset(["to", "float", "double", "half", "bfloat16", "type", "type_as"])


def is_cast(name: str) -> bool:
    """Return whether autocast casts the arguments of a function."""
    return name in _HALF or name == ATTENTION or name in _SINGLE


def as_autocast(name: str, given: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return the arguments of a function as autocast casts them."""
    dtype = COMPUTED if name in _HALF or name == ATTENTION else SINGLE if name in _SINGLE else None
    if dtype is None:
        return given

    def cast(leaf: Any) -> Any:
        return leaf.to(dtype) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    cast_args, cast_kwargs = tree_map(cast, given)
    return cast_args, cast_kwargs


def kind_of(name: str, made: Sequence[torch.Tensor], weights: Sequence[str]) -> Kind:
    """Return the kind of a function, by its name, the tensors that it returns and the names of its weights."""
    has_weight = bool(weights) and weights[0].endswith(".weight")
    if name == ATTENTION:
        return "attention"
    if name == NORM:
        return "norm"
    if name == "embedding" and has_weight:
        return "embedding"
    if name == "linear" and has_weight:
        return "linear"
    if name.startswith("conv") and has_weight and "transpose" not in name:
        return "conv"
    if name in _HALF:
        return "half"
    if name in _SINGLE:
        return "single"
    if any(t.is_complex() for t in made):
        return "complex"
    return _CASTS.get(made[0].dtype, "other") if name in _TO else "other"


def length_of(name: str, tensors: Sequence[torch.Tensor]) -> int:
    """Return the length of the vectors of a matrix product, 0 for any other function."""
    if name not in _HALF:
        return 0
    if name.startswith("conv"):
        return int(tensors[1][0].numel())
    return int(tensors[1 if name in ("addmm", "baddbmm") else 0].shape[-1])
