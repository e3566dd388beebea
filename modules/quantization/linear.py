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

from modules.quantization.packing import Packing, Stored
from modules.quantization.products import rounded_product
from modules.quantization.spec import QuantizedFormat, Rounding
from modules.system.factories import load_factory

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
    """A frozen linear layer whose weight is packed in a format."""

    table: torch.Tensor | None

    def __init__(self, layer: nn.Linear, form: QuantizedFormat) -> None:
        """Pack the weight of a layer, on its device; its dtype is that of the property `weight`. The bias is kept."""
        nn.Module.__init__(self)  # not that of Linear, which would allocate a weight
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.form = form
        self.dtype = layer.weight.dtype
        self._packing: Packing = load_factory(form.packing)
        with torch.no_grad():
            packed, scales = self._packing.pack(layer.weight.detach())
        self.packed = nn.Parameter(packed, requires_grad=False)
        self.scales = nn.Parameter(scales, requires_grad=False)
        self.register_buffer("table", self._packing.table(), persistent=False)
        if self.table is not None:
            self.table = self.table.to(packed.device)
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
        return self._packing.unpack(self._stored(), (self.out_features, self.in_features), self.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output for inputs (..., in), in the dtype of autocast or of the inputs."""
        x = x.to(_compute_dtype(x))
        shape = (self.out_features, self.in_features)
        product: torch.Tensor = _Product.apply(  # type: ignore[no-untyped-call]
            x, *self._stored(), self.bias, self._packing, shape, self.form.rounds_inputs
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
        bias: torch.Tensor | None,
        packing: Packing,
        shape: tuple[int, int],
        rounds_inputs: Rounding,
    ) -> torch.Tensor:
        """Return the output (..., out) in the dtype of x (..., in)."""
        ctx.save_for_backward(packed, scales, table)
        ctx.packing, ctx.shape = packing, shape
        own_bias = None if bias is None else bias.to(x.dtype)
        if rounds_inputs:
            return rounded_product(x, packed, scales, own_bias)
        return functional.linear(x, packing.unpack(Stored(packed, scales, table), shape, x.dtype), own_bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradient of x."""
        weight = ctx.packing.unpack(Stored(*ctx.saved_tensors), ctx.shape, gradient.dtype)
        return (gradient @ weight, None, None, None, None, None, None, None)
