"""Products of rounded tokens with packed rows of 8 bits, forward and to the inputs, in 8 bits where the device can.

Each token has its own scale, so that the result of a sample does not depend on the others in its batch. A gradient is
rounded like an input: the scales of the rows, over which it is summed, are multiplied into it before.

Tensor cores read both operands along the dimension that is summed (cuBLASLt's "TN"; only data center Blackwell reads
others), so there the packed rows are transposed for the gradient: 2 bytes a weight are moved, unpacking moves 3.
"""

from __future__ import annotations

import logging

import torch
from torch.nn import functional

from modules.quantization.known_once import known_once
from modules.quantization.packing import ROWS, PackedData, Rows, is_eager_gpu, scale_values
from modules.quantization.registry import PRODUCT_CAPABILITY, Rounding

_MIN_TOKENS = 32  # torch._int_mm on CUDA: "self.size(0) needs to be greater than 16"
_MIN_ROW_SCALED = 257  # H100 (torchao's issue 4582): cuBLAS has no such product of fewer tokens of 9216 values
_MULTIPLE: dict[Rounding, int] = {"int8": 8, "float8": 16}  # of both sides of the weight on CUDA (cuBLASLt)

# A float32 from 2**23 to 2**24 has no fraction, so adding this rounds to the nearest integer, which the lowest byte
# then has in two's complement: two kernels, where dividing, rounding and casting are three.
_INTEGERS = 1.5 * 2**23

logger = logging.getLogger("darkroom.quantization")


def multiply_rounded(
    x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return x (..., in) rounded to the dtype of the packed rows (out, in), times them, in the dtype of x.

    `scales` (out, 1) are the scales of the rows. Where the device has no such product, the same rounded values are
    multiplied in the dtype of x.
    """
    tokens, rows = x.flatten(0, -2), _rows_of(packed)
    if computes_in_8_bits(packed):
        product = _multiply_in_8_bits(tokens, packed, scales.T, bias, x.dtype)
    else:
        rounded, token_scales = round_tokens(tokens, rows)
        weight = rows.unpack(PackedData(packed, scales), (packed.shape[0], packed.shape[1]), x.dtype)
        product = functional.linear(scale_values(rounded, token_scales, x.dtype), weight, bias)
    return product.view(*x.shape[:-1], packed.shape[0])


def gradient_of_inputs(gradient: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return the gradient (..., out) times the packed rows (out, in) in its dtype: the gradient of the inputs.

    It is rounded where the product is computed in 8 bits; elsewhere the rows are unpacked.
    """
    if not computes_in_8_bits(packed):
        shape = (packed.shape[0], packed.shape[1])
        return gradient @ _rows_of(packed).unpack(PackedData(packed, scales), shape, gradient.dtype)
    # float16 has no room for gradients times scales.
    dtype = torch.float32 if gradient.dtype == torch.float32 else torch.bfloat16
    tokens = scale_values(gradient.flatten(0, -2), scales.T, dtype)
    product = _multiply_in_8_bits(tokens, packed.T, None, None, gradient.dtype)
    return product.view(*gradient.shape[:-1], packed.shape[1])


def round_tokens(tokens: torch.Tensor, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens (n, k) rounded to the dtype of packed rows, and their scales (n, 1), as `Rows.round` does.

    The bits are the same. On a GPU values are not written in float32, except once for int8.
    """
    if not is_eager_gpu(tokens):
        return rows.round(tokens.float())
    largest = torch.linalg.vector_norm(tokens, float("inf"), dim=-1, keepdim=True, dtype=torch.float32)
    scales = rows.scales(largest)
    # Row after row, in whatever order the tokens are in memory.
    dtype = rows.dtype if rows.dtype.is_floating_point else torch.float32
    out = torch.empty(tokens.shape, dtype=dtype, device=tokens.device)
    if rows.dtype.is_floating_point:
        return torch.div(tokens, scales, out=out), scales
    start = torch.full((1,), _INTEGERS, device=tokens.device)
    return torch.addcdiv(start, tokens, scales, out=out).view(torch.int8)[:, ::4].contiguous(), scales


def computes_in_8_bits(packed: torch.Tensor) -> bool:
    """Return whether products with packed rows (out, in) are computed in 8 bits; the log reports why not.

    Products in float8 are emulated on a CPU, in which unpacking is faster.
    """
    device, rounding = packed.device, _rounding_of(packed)
    if device.type == "cpu":
        return rounding == "int8"
    if device.type != "cuda" or not _has_product(device, rounding):
        return False
    multiple = _MULTIPLE[rounding]
    if all(size % multiple == 0 for size in packed.shape):
        return True
    _log_once(f"Layers whose sizes are not multiples of {multiple} are computed in 16 bits, not in {rounding}.")
    return False


@known_once
def _has_product(device: torch.device, rounding: Rounding) -> bool:
    if torch.version.hip is not None:
        return False
    major, minor = torch.cuda.get_device_capability(device)
    needed = PRODUCT_CAPABILITY[rounding]
    if major + minor / 10 >= needed:
        return True
    logger.warning(
        "Layers are computed in 16 bits, not in %s, which needs compute capability %s; this GPU has %s.%s.",
        rounding, needed, major, minor,
    )  # fmt: skip
    return False


@known_once
def _takes_row_scales(device: torch.device) -> bool:
    """Return whether the product in float8 takes scales of rows: not on each GPU that has the product."""
    ones = torch.ones(_MIN_ROW_SCALED, 1, device=device)
    values = ones.expand(-1, 32).contiguous().to(torch.float8_e4m3fn)
    try:
        torch._scaled_mm(values, values[:32].T, scale_a=ones, scale_b=ones[:32].T, out_dtype=torch.bfloat16)
    except RuntimeError:
        logger.info("Products in float8 are scaled after they are computed: this GPU takes no scales of rows.")
        return False
    return True


@known_once
def _log_once(sentence: str) -> None:
    logger.warning(sentence)


def _multiply_in_8_bits(
    tokens: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor | None,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return tokens (n, k), rounded, times packed rows (m, k), times their scales (1, m), plus the bias, in a dtype."""
    rounded, token_scales = round_tokens(tokens, _rows_of(packed))
    if packed.dtype == torch.int8:
        return _apply_scales(_int_product(rounded, packed), token_scales, scales, bias, dtype)
    packed = packed.contiguous()
    is_row_scaled = dtype == torch.bfloat16 and len(rounded) >= _MIN_ROW_SCALED  # no other dtype has scales of rows
    if is_row_scaled and _takes_row_scales(packed.device):
        ones = token_scales.new_ones(1, len(packed)) if scales is None else scales.contiguous()
        return torch._scaled_mm(
            rounded, packed.T, scale_a=token_scales, scale_b=ones, bias=bias, out_dtype=torch.bfloat16
        )
    one = token_scales.new_ones(())
    product = torch._scaled_mm(rounded, packed.T, scale_a=one, scale_b=one, out_dtype=torch.float32)
    return _apply_scales(product, token_scales, scales, bias, dtype)


def _int_product(tokens: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    """Return int8 tokens (n, k) times int8 rows (m, k) as int32 (n, m); on a CPU as float32, exact up to k = 1040.

    On a CPU without VNNI the sums of torch._int_mm are in 16 bits and saturate, and on any, k = 1 gives random values.
    """
    if packed.device.type == "cpu":
        return tokens.float() @ packed.T.float()
    missing = max(0, _MIN_TOKENS - len(tokens))
    padded = functional.pad(tokens, (0, 0, 0, missing)) if missing else tokens
    return torch._int_mm(padded, packed.contiguous().T)[: len(tokens)]


def _apply_scales(
    product: torch.Tensor,
    token_scales: torch.Tensor,
    scales: torch.Tensor | None,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return a product (n, m) times scales (n, 1) and (1, m), plus a bias (m,), rounded once from float32."""
    if scales is None:
        return scale_values(product, token_scales, dtype)
    if bias is None:
        return scale_values(product * token_scales, scales, dtype)
    if not is_eager_gpu(product):
        return (product * token_scales * scales + bias).to(dtype)
    out = torch.empty(product.shape, dtype=dtype, device=product.device)
    return torch.addcmul(bias, product * token_scales, scales, out=out)


def _rounding_of(packed: torch.Tensor) -> Rounding:
    return "int8" if packed.dtype == torch.int8 else "float8"


def _rows_of(packed: torch.Tensor) -> Rows:
    return ROWS[_rounding_of(packed)]
