"""Products of rounded inputs with packed rows: in 8 bits where the device can, otherwise with the same rounded values.

Each token has its own scale, so what a sample becomes does not depend on the others in its batch.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from modules.quantization.packing import FLOAT8_ROWS, INT8_ROWS, Stored, rounded_rows

_CUDA_MIN_ROWS = 17  # torch._int_mm: "self.size(0) needs to be greater than 16"
_CUDA_MULTIPLE = {torch.int8: 8, torch.float8_e4m3fn: 16}  # of both sides of the weight (cuBLASLt)
_CUDA_CAPABILITY = {torch.int8: (7, 5), torch.float8_e4m3fn: (8, 9)}


def rounded_product(
    x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return x (..., in) rounded to the dtype of the packed rows (out, in), times them, in the dtype of x.

    `scales` (out, 1) are those of the rows.
    """
    rows = INT8_ROWS if packed.dtype == torch.int8 else FLOAT8_ROWS
    rounded, token_scales = rounded_rows(x.flatten(0, -2).float(), dtype=rows.dtype, largest=rows.largest)
    if _computes_in_8_bits(rounded, packed):
        product = _product_in_8_bits(rounded, packed) * token_scales * scales.T
    else:
        weight = rows.unpack(Stored(packed, scales), (packed.shape[0], packed.shape[1]), x.dtype)
        product = functional.linear((rounded.float() * token_scales).to(x.dtype), weight)
    out = product.to(x.dtype).view(*x.shape[:-1], packed.shape[0])
    return out if bias is None else out + bias


def _product_in_8_bits(left: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return left (tokens, in) times rows (out, in) in float32, summed in 32 bits."""
    if rows.dtype == torch.int8:
        return torch._int_mm(left, rows.T).float()
    one = _one(left)
    product: torch.Tensor = torch._scaled_mm(left, rows.T, scale_a=one, scale_b=one, out_dtype=torch.float32)
    return product


def _one(like: torch.Tensor) -> torch.Tensor:
    return torch.ones((), device=like.device)


def _computes_in_8_bits(left: torch.Tensor, rows: torch.Tensor) -> bool:
    if left.device.type == "cpu":
        return rows.dtype == torch.int8  # products in float8 are emulated there
    if left.device.type != "cuda" or torch.version.hip is not None:
        return False
    divides = all(size % _CUDA_MULTIPLE[rows.dtype] == 0 for size in rows.shape)
    is_able = torch.cuda.get_device_capability(left.device) >= _CUDA_CAPABILITY[rows.dtype]
    return is_able and divides and (rows.dtype != torch.int8 or left.shape[0] >= _CUDA_MIN_ROWS)
