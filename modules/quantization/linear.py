"""A frozen linear layer with a quantized weight.

It is an `nn.Linear` to other code: adapters attach to it, and `weight` is the weight it computes
with. The packed weight and its scales are frozen parameters, so they move, are offloaded and are part of the layer's
state as any weight is. Nothing unpacked is kept for the backward pass: the weight is unpacked again there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from modules.quantization.packed_weight import PackedWeight, packed_weight
from modules.quantization.packing import Packing, Stored
from modules.quantization.products import rounded_product
from modules.quantization.spec import QuantizedFormat, Rounding

_without_values: ContextVar[bool] = ContextVar("without_values", default=False)


@contextmanager
def weights_without_values() -> Iterator[None]:
    """Let the weights of quantized layers have a shape, a dtype and a device only, for code that reads no more.

    peft reads the weight of a layer some twenty times to attach a LoRA; unpacking them all would take minutes.
    """
    token = _without_values.set(True)
    try:
        yield
    finally:
        _without_values.reset(token)


class QuantizedLinear(nn.Linear):
    """A frozen linear layer whose weight is packed in a format, with a low-rank product beside it if it has one."""

    table: torch.Tensor | None

    def __init__(self, layer: nn.Linear, form: QuantizedFormat, weight: PackedWeight | None = None) -> None:
        """Take the place of a layer. Without `weight`, that of the layer is packed, on its device.

        The dtype of the layer's weight is that of the property `weight`. The bias is kept.
        """
        nn.Module.__init__(self)  # not that of Linear, which would allocate a weight
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.form = form
        self.dtype = layer.weight.dtype
        own = packed_weight(layer.weight.detach(), form) if weight is None else weight
        self._packing: Packing = own.packing
        self.packed = nn.Parameter(own.packed, requires_grad=False)
        self.scales = nn.Parameter(own.scales, requires_grad=False)
        self.down = None if own.down is None else nn.Parameter(own.down, requires_grad=False)
        self.up = None if own.up is None else nn.Parameter(own.up, requires_grad=False)
        self.register_buffer("table", self._packing.table(), persistent=False)
        if self.table is not None:
            self.table = self.table.to(own.packed.device)
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach(), requires_grad=False)
        self.train(layer.training)

    # Linear declares it as a parameter; here it is computed.
    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        """The weight (out, in), unpacked in the dtype that the layer had. Each use unpacks it again."""
        if _without_values.get():
            return torch.empty((), dtype=self.dtype, device=self.packed.device).expand(
                self.out_features, self.in_features
            )
        shape = (self.out_features, self.in_features)
        if self.down is None or self.up is None:
            return self._packing.unpack(self._stored(), shape, self.dtype)
        exact = self._packing.unpack(self._stored(), shape, torch.float32)
        return exact.addmm_(self.up.float(), self.down.float()).to(self.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output for inputs (..., in), in the dtype of autocast or of the inputs."""
        x = x.to(_compute_dtype(x))
        shape = (self.out_features, self.in_features)
        product: torch.Tensor = _Product.apply(  # type: ignore[no-untyped-call]
            x, *self._stored(), self.down, self.up, self.bias, self._packing, shape, self.form.rounds_inputs
        )
        return product

    def _stored(self) -> Stored:
        return Stored(self.packed, self.scales, self.table)

    def extra_repr(self) -> str:
        """Return the sizes and the format."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, format={self.form.name}"


def _compute_dtype(x: torch.Tensor) -> torch.dtype:
    """Return the dtype of the product: autocast's where it is on."""
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):  # weights without values have no autocast
        return x.dtype
    return torch.get_autocast_dtype(kind)


class _Product(torch.autograd.Function):
    """The product with a packed weight. The gradient is that of the product with the unpacked weight, also where the
    inputs are rounded: rounding counts as the identity there (a straight-through estimator).
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        packed: torch.Tensor,
        scales: torch.Tensor,
        table: torch.Tensor | None,
        down: torch.Tensor | None,
        up: torch.Tensor | None,
        bias: torch.Tensor | None,
        packing: Packing,
        shape: tuple[int, int],
        rounds_inputs: Rounding,
    ) -> torch.Tensor:
        """Return the output (..., out) in the dtype of x (..., in)."""
        ctx.save_for_backward(packed, scales, table, down, up)
        ctx.packing, ctx.shape = packing, shape
        own_bias = None if bias is None else bias.to(x.dtype)
        stored = Stored(packed, scales, table)
        if rounds_inputs:
            out = rounded_product(x, *packing.rows(stored, shape, rounds_inputs), own_bias)
        else:
            out = functional.linear(x, packing.unpack(stored, shape, x.dtype), own_bias)
        if down is not None and up is not None:
            return _with_product(out, x, down.to(x.dtype), up.to(x.dtype))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradient of x."""
        packed, scales, table, down, up = ctx.saved_tensors
        weight = ctx.packing.unpack(Stored(packed, scales, table), ctx.shape, gradient.dtype)
        of_x = gradient @ weight
        if down is not None and up is not None:
            of_x = _with_product(of_x, gradient, up.to(gradient.dtype).T, down.to(gradient.dtype).T)
        return (of_x, *(None for _ in range(9)))


def _with_product(to: torch.Tensor, x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return a tensor (..., n) plus x (..., k) times first (rank, k) and second (n, rank).

    Not in place: selective checkpointing may have kept the tensor.
    """
    low = x.reshape(-1, x.shape[-1]) @ first.T
    return torch.addmm(to.view(-1, to.shape[-1]), low, second.T).view(to.shape)
