"""A frozen linear layer with a quantized weight.

It is an `nn.Linear` to other code: adapters attach to it, and `weight` is the weight it computes with. The packed
weight and its scales are frozen parameters, so they move, are offloaded and are part of the layer's state as any weight
is. Nothing unpacked is kept for the backward pass: the weight is unpacked again there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from modules.data.cache.store import EntryStore
from modules.formats.lazy_tensors import LazyTensor
from modules.quantization.packing import PackedData, PackedWeight, Packing, pack_weight
from modules.quantization.products import gradient_of_inputs, multiply_rounded
from modules.quantization.registry import ChosenFormat, QuantizedFormat
from modules.settings.layer_filter import select_layers

NOTHING_PACKED: Mapping[str, Callable[[], PackedWeight]] = MappingProxyType({})

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


class UnreadLinear(nn.Linear):
    """A frozen linear layer whose weight is still in its file, and on the meta device: it is read to be quantized."""

    def __init__(self, layer: nn.Linear, source: LazyTensor, dtype: torch.dtype) -> None:
        """Take the place of a layer; `source` is its weight, which is read in a dtype."""
        nn.Module.__init__(self)  # not Linear's, which would allocate a weight
        self.in_features, self.out_features, self.bias = layer.in_features, layer.out_features, layer.bias
        self.weight = nn.Parameter(torch.empty(source.shape, dtype=dtype, device="meta"), requires_grad=False)
        self._source = source
        self.train(layer.training)

    def read(self) -> torch.Tensor:
        """Return the weight (out, in)."""
        return self._source.make().to(self.weight.dtype)


def read_later(module: nn.Module, sources: Mapping[str, LazyTensor], dtype: torch.dtype) -> None:
    """Leave the weights of some linear layers in their files until they are quantized: `sources` has them by layer."""
    for name, source in sources.items():
        layer = module.get_submodule(name)
        assert isinstance(layer, nn.Linear), f"{name} is not a linear layer"
        parent, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(parent), attribute, UnreadLinear(layer, source, dtype))


class QuantizedLinear(nn.Linear):
    """A frozen linear layer whose weight is packed in a format, plus a low-rank product if it has one."""

    table: torch.Tensor | None

    def __init__(self, layer: nn.Linear, form: QuantizedFormat, weight: PackedWeight | None = None) -> None:
        """Take the place of a layer. Without `weight`, the weight of the layer is packed, on its device.

        The property `weight` has the dtype of the layer's weight. The bias is kept.
        """
        nn.Module.__init__(self)  # not Linear's, which would allocate a weight
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.form = form
        self.dtype = layer.weight.dtype
        self._rounds = bool(form.rounds_inputs)
        weights = pack_weight(layer.weight.detach(), form) if weight is None else weight
        self._packing: Packing = weights.packing
        self.packed = nn.Parameter(weights.packed, requires_grad=False)
        self.scales = nn.Parameter(weights.scales, requires_grad=False)
        self.down = None if weights.down is None else nn.Parameter(weights.down, requires_grad=False)
        self.up = None if weights.up is None else nn.Parameter(weights.up, requires_grad=False)
        self.register_buffer("table", self._packing.table(), persistent=False)
        if self.table is not None:
            self.table = self.table.to(weights.packed.device)
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
            return self._packing.unpack(self._stored_weight(), shape, self.dtype)
        exact = self._packing.unpack(self._stored_weight(), shape, torch.float32)
        return exact.addmm_(self.up.float(), self.down.float()).to(self.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output for inputs (..., in), in the dtype of autocast or of the inputs."""
        x = x.to(_compute_dtype(x))
        shape = (self.out_features, self.in_features)
        product: torch.Tensor = _Product.apply(  # type: ignore[no-untyped-call]
            x, *self._stored_weight(), self.down, self.up, self.bias, self._packing, shape, self._rounds
        )
        return product

    def exchange_packing(self, other: QuantizedLinear) -> None:
        """Exchange how the weights of two layers are packed, once their packed weights were exchanged."""
        self._packing, other._packing = other._packing, self._packing

    def _stored_weight(self) -> PackedData:
        return PackedData(self.packed, self.scales, self.table)

    def extra_repr(self) -> str:
        """Return the sizes and the format."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, format={self.form.name}"


def _compute_dtype(x: torch.Tensor) -> torch.dtype:
    """Return the dtype of the product: autocast's if it is on."""
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):  # weights without values have no autocast
        return x.dtype
    return torch.get_autocast_dtype(kind)


class _Product(torch.autograd.Function):
    """The product with a packed weight. Its gradient is the same as with the unpacked weight.

    Also if the inputs are rounded, which counts as the identity there (a straight-through estimator); the gradient is
    rounded, too, then.
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
        rounds: bool,
    ) -> torch.Tensor:
        """Return the output (..., out) in the dtype of x (..., in)."""
        ctx.save_for_backward(packed, scales, table, down, up)
        ctx.packing, ctx.shape, ctx.rounds = packing, shape, rounds
        own_bias = None if bias is None else bias.to(x.dtype)
        stored = PackedData(packed, scales, table)
        if rounds:
            out = multiply_rounded(x, packed, scales, own_bias)
        else:
            out = functional.linear(x, packing.unpack(stored, shape, x.dtype), own_bias)
        if down is not None and up is not None:
            return _add_low_rank(out, x, down.to(x.dtype), up.to(x.dtype))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradient of x."""
        packed, scales, table, down, up = ctx.saved_tensors
        if ctx.rounds:
            of_x = gradient_of_inputs(gradient, packed, scales)
        else:
            of_x = gradient @ ctx.packing.unpack(PackedData(packed, scales, table), ctx.shape, gradient.dtype)
        if down is not None and up is not None:
            of_x = _add_low_rank(of_x, gradient, up.to(gradient.dtype).T, down.to(gradient.dtype).T)
        return (of_x, *(None for _ in range(9)))


def _add_low_rank(to: torch.Tensor, x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return a tensor (..., n) plus x (..., k) times first (rank, k) and second (n, rank).

    Not in place: selective checkpointing may have kept the tensor.
    """
    low = x.reshape(-1, x.shape[-1]) @ first.T
    return torch.addmm(to.view(-1, to.shape[-1]), low, second.T).view(to.shape)


def quantize_layers(
    module: nn.Module,
    chosen: ChosenFormat,
    *,
    cache: EntryStore | None = None,
    packed: Mapping[str, Callable[[], PackedWeight]] = NOTHING_PACKED,
) -> list[str]:
    """Replace the weights of a part's linear layers by quantized ones, one after the other, in place.

    `packed` reads the weights of layers that a file has packed already; of a format that is stored in a file only these
    are replaced. A `cache` keeps residuals, which take time to compute. Returns the names of the layers. Raises
    DarkroomError if an entry of the filter matches no layer.
    """
    linear = {name: layer for name, layer in module.named_modules() if type(layer) in (nn.Linear, UnreadLinear)}
    taken = select_layers(chosen.layers, linear, page="Model")
    names = [n for n in taken if chosen.takes(n) and (n in packed or not chosen.format.is_stored)]
    for name in names:
        # Nothing else may reference the layer: its weight is freed before the next one is packed.
        layer = linear.pop(name)
        read = packed.get(name)
        weight = pack_weight(_weight_of(layer), chosen.format, chosen.residual, cache) if read is None else read()
        parent, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(parent), attribute, QuantizedLinear(layer, chosen.format, weight))
        del layer
    return names


def _weight_of(layer: nn.Linear) -> torch.Tensor:
    return layer.read() if isinstance(layer, UnreadLinear) else layer.weight.detach()
