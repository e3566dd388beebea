"""Dtypes by the names that configs use."""

from __future__ import annotations

import torch

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def dtype_of(name: str) -> torch.dtype:
    """Return the torch dtype of a config's name. Raises KeyError for an unknown name."""
    return DTYPES[name]


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's plain name, as in "bfloat16"."""
    return str(dtype).removeprefix("torch.")
