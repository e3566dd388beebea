"""The forward and the backward pass of a LoRA's layer in few operations, in the dtype of its input.

It computes what peft's layer does under autocast, where the frozen weight and the input are in one 16-bit dtype and the
factors A and B in another, usually float32: they multiply rounded to the input's dtype, all rounded at once when a pass
begins (`modules/memory/pass_copies.py`). The scale and both sums are part of the products (`addmm`). The gradients of A
and B have their dtype; on a GPU of NVIDIA's their products are summed and returned in it, without a rounding before.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from modules.families.parts.circular_padding import padded
from modules.memory.pass_copies import copies_of

ADAPTER = "default"
"""The name of the run's LoRA in peft's layers."""

_Factors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]  # A and B, and both as they multiply


def fuse_forward(layer: LoraLayer) -> None:
    """Replace the forward pass of a peft layer with a plain LoRA on a linear layer or a convolution."""
    # A method: torch.compile shares the code of layers whose methods are one function, but not of other callables.
    layer.forward = MethodType(_forward, layer)


def _forward(layer: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Return the output of a layer with its LoRA, in the dtype of the layer's own output."""
    base = layer.get_base_layer()
    if layer.disable_adapters:
        plain: torch.Tensor = base(x, *args, **kwargs)
        return plain
    scale, dropout = layer.scaling[ADAPTER], layer.lora_dropout[ADAPTER]
    if isinstance(base, nn.Conv2d):
        return _convolved(base, base(x), dropout(x), _factors(layer, x.dtype), scale)
    if is_plain(base) and isinstance(dropout, nn.Identity):
        factors = _factors(layer, x.dtype)
        fused: torch.Tensor = _AdaptedLinear.apply(x, base.weight, base.bias, *factors, scale)  # type: ignore[no-untyped-call]
        return fused
    out = base(x)
    added: torch.Tensor = _AddLowRank.apply(out, dropout(x), *_factors(layer, out.dtype), scale)  # type: ignore[no-untyped-call]
    return added


def _factors(layer: Any, dtype: torch.dtype) -> _Factors:
    down, up = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
    copies = copies_of(layer)
    if copies is not None and copies[0].dtype == dtype:
        return down, up, *copies
    return down, up, down.detach().to(dtype), up.detach().to(dtype)


def is_plain(layer: nn.Module) -> bool:
    """Return whether a layer is a frozen linear layer whose forward pass nothing has changed."""
    hooks = layer._forward_hooks or layer._forward_pre_hooks or "forward" in layer.__dict__
    return type(layer) is nn.Linear and not hooks and not layer.weight.requires_grad


def _convolved(base: nn.Conv2d, out: torch.Tensor, x: torch.Tensor, factors: _Factors, scale: float) -> torch.Tensor:
    down, up = (_Rounded.apply(*pair) for pair in zip(factors[:2], factors[2:], strict=True))  # type: ignore[no-untyped-call]
    low = functional.conv2d(padded(base, x), down, None, base.stride, base.padding, base.dilation)
    return torch.add(out, functional.conv2d(low, up), alpha=scale)


class _Rounded(torch.autograd.Function):
    """A factor as it multiplies: its copy, whose gradient is the factor's."""

    @staticmethod
    def forward(ctx: Any, factor: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
        """Return the copy."""
        ctx.dtype = factor.dtype
        return copy.view_as(copy)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the gradient in the factor's dtype."""
        return gradient.to(ctx.dtype), None


class _AdaptedLinear(torch.autograd.Function):
    """`x W^T + b + s (x A^T) B^T`, for x (..., in), a frozen W (out, in), A (rank, in) and B (out, rank)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        down: torch.Tensor,
        up: torch.Tensor,
        narrow_down: torch.Tensor,
        narrow_up: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Return the output (..., out) in the dtype of x, which A and B have as narrow ones."""
        rows = x.reshape(-1, x.shape[-1])
        low = rows @ narrow_down.T
        # Not in place: selective checkpointing may have kept the product.
        out = torch.addmm(functional.linear(rows, weight, bias), low, narrow_up.T, alpha=scale)
        ctx.save_for_backward(x, low, narrow_down, narrow_up, weight)
        ctx.scale, ctx.factor_dtypes = scale, (down.dtype, up.dtype)
        return out.view(*x.shape[:-1], out.shape[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of x, A and B."""
        x, low, down, up, weight = ctx.saved_tensors
        of_out = gradient.reshape(-1, gradient.shape[-1])
        of_low, of_down, of_up = _gradients(ctx, of_out, x, low, up, needs=ctx.needs_input_grad[3:5])
        of_x = torch.mm(of_out, weight).addmm_(of_low, down).view(x.shape) if ctx.needs_input_grad[0] else None
        return of_x, None, None, of_down, of_up, None, None, None


class _AddLowRank(torch.autograd.Function):
    """`y + s (x A^T) B^T`, for y (..., out), x (..., in), A (rank, in) and B (out, rank)."""

    @staticmethod
    def forward(
        ctx: Any,
        y: torch.Tensor,
        x: torch.Tensor,
        down: torch.Tensor,
        up: torch.Tensor,
        narrow_down: torch.Tensor,
        narrow_up: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Return the sum, in the dtype of y, which A and B have as narrow ones."""
        low = x.reshape(-1, x.shape[-1]).to(y.dtype) @ narrow_down.T
        ctx.save_for_backward(x, low, narrow_down, narrow_up)
        ctx.scale, ctx.factor_dtypes = scale, (down.dtype, up.dtype)
        return torch.addmm(y.reshape(-1, y.shape[-1]), low, narrow_up.T, alpha=scale).view(y.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of y, x, A and B."""
        x, low, down, up = ctx.saved_tensors
        of_out = gradient.reshape(-1, gradient.shape[-1])
        of_low, of_down, of_up = _gradients(ctx, of_out, x, low, up, needs=ctx.needs_input_grad[2:4])
        of_x = (of_low @ down).view(x.shape).to(x.dtype) if ctx.needs_input_grad[1] else None
        return gradient, of_x, of_down, of_up, None, None, None


def _gradients(
    ctx: Any, of_out: torch.Tensor, x: torch.Tensor, low: torch.Tensor, up: torch.Tensor, *, needs: tuple[bool, bool]
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Return the gradients of the low-rank product (tokens, rank), of A and of B."""
    of_low = of_out @ up
    if ctx.scale != 1:
        of_low, low = of_low * ctx.scale, low * ctx.scale
    rows, (down_dtype, up_dtype) = x.reshape(-1, x.shape[-1]).to(of_out.dtype), ctx.factor_dtypes
    of_down = _product(of_low.T, rows, down_dtype) if needs[0] else None
    return of_low, of_down, _product(of_out.T, low, up_dtype) if needs[1] else None


def _product(left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a matrix product in a dtype; NVIDIA's kernels return float32 from 16 bits without rounding before."""
    widens = dtype == torch.float32 and left.dtype != dtype
    if widens and left.device.type == "cuda" and torch.version.hip is None:
        return torch.mm(left, right, out_dtype=dtype)
    return (left @ right).to(dtype)
