"""The forward and the backward pass of a LoRA's layer in few operations, in the dtype of its input.

It computes what peft's layer does under autocast, where the frozen weight and the input are in one 16-bit dtype and the
factors A and B in another, usually float32: they multiply rounded to the input's dtype. The scale and all sums are part
of the products (`addmm`). The gradients of A and B have their dtype; on a GPU of NVIDIA's their products are summed and
returned in it, without a rounding in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional


class RoundFactor(torch.autograd.Function):
    """A copy of a factor, in the dtype of the products; its gradient becomes the factor's."""

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


class AdaptedLinear(torch.autograd.Function):
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


class AddLowRank(torch.autograd.Function):
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


class AdaptedSiblings(torch.autograd.Function):
    """Computes several layers that read one x, each as `AdaptedLinear` does, with one product for all A."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, down: torch.Tensor, scales: tuple[float, ...], *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return the outputs (..., out) in the dtype of x, which all A, in one, and each B have.

        `tensors` are W, b, A and B of each layer, and its B as it multiplies, one layer after the other.
        """
        weights, biases, factors, ups = tensors[::5], tensors[1::5], (tensors[2::5], tensors[3::5]), tensors[4::5]
        rows = x.reshape(-1, x.shape[-1])
        low = rows @ down.T
        places = list(accumulate((up.shape[1] for up in ups), initial=0))
        ctx.save_for_backward(x, low, down, *weights, *ups)
        ctx.scales, ctx.places = scales, places
        ctx.dtypes = [[factor.dtype for factor in of_kind] for of_kind in factors]
        ctx.set_materialize_grads(False)
        outputs = (
            torch.addmm(functional.linear(rows, weight, bias), low[:, start:end], up.T, alpha=scale)
            for weight, bias, up, scale, (start, end) in zip(
                weights, biases, ups, scales, pairwise(places), strict=True
            )
        )
        return tuple(out.view(*x.shape[:-1], out.shape[-1]) for out in outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of x, and of A and B of each layer."""
        x, low, down, *rest = ctx.saved_tensors
        number, places = len(ctx.scales), ctx.places
        weights, ups = rest[:number], rest[number:]
        of_outs = [None if g is None else g.reshape(-1, g.shape[-1]) for g in gradients]
        of_low = torch.empty_like(low)
        for of_out, up, (start, end) in zip(of_outs, ups, pairwise(places), strict=True):
            if of_out is None:
                of_low[:, start:end].zero_()
            else:
                torch.mm(of_out, up, out=of_low[:, start:end])
        low, of_low = _scale_products(low, ctx.scales, places), _scale_products(of_low, ctx.scales, places)
        of_downs: list[torch.Tensor | None] = [None] * number
        of_ups: list[torch.Tensor | None] = [None] * number
        needs = ctx.needs_input_grad
        if any(needs[5::5]):
            joined = _product(of_low.T, x.reshape(-1, x.shape[-1]), ctx.dtypes[0][0])
        for i, (of_out, (start, end)) in enumerate(zip(of_outs, pairwise(places), strict=True)):
            if of_out is not None and needs[5 + 5 * i]:
                of_downs[i] = joined[start:end]
            if of_out is not None and needs[6 + 5 * i]:
                of_ups[i] = _product(of_out.T, low[:, start:end], ctx.dtypes[1][i])
        of_x = _gradient_of_input(of_outs, weights, of_low, down).view(x.shape) if needs[0] else None
        of_tensors = [(None, None, of_downs[i], of_ups[i], None) for i in range(number)]
        return of_x, None, None, *(gradient for of_layer in of_tensors for gradient in of_layer)


def _gradient_of_input(
    of_outs: Iterable[torch.Tensor | None], weights: Iterable[torch.Tensor], of_low: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    total: torch.Tensor | None = None
    for of_out, weight in zip(of_outs, weights, strict=True):
        if of_out is not None:
            total = torch.mm(of_out, weight) if total is None else total.addmm_(of_out, weight)
    return of_low @ down if total is None else total.addmm_(of_low, down)


def _scale_products(low: torch.Tensor, scales: Sequence[float], places: Sequence[int]) -> torch.Tensor:
    """Return low-rank products (n, ranks) times the scale of each layer."""
    if len(set(scales)) == 1:
        return low if scales[0] == 1 else low * scales[0]
    parts = [low[:, start:end] * scale for scale, (start, end) in zip(scales, pairwise(places), strict=True)]
    return torch.cat(parts, dim=1)


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
