"""What LoKr adds to one layer: `scale * kron(w1, w2) x`, of its factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from modules.adapters.delta_adapter import AdaptedLayer, applied, strength_ratio
from modules.adapters.layer_dropout import ModuleDropout, dropped_channels
from modules.formats.adapter_layers import AdapterLayer

_LAST = ("lokr_w2", "lokr_w2_b")


class KroneckerDelta(nn.Module):
    """What LoKr adds to one linear or convolution layer. `factors` are named as in LyCORIS files."""

    def __init__(
        self,
        kernel: Sequence[int],
        factors: Mapping[str, torch.Tensor],
        *,
        alpha: float,
        dropout: float,
        vec_trick: bool,
        rank_dropout: float = 0.0,
        module_dropout: ModuleDropout | None = None,
    ) -> None:
        super().__init__()
        for name, factor in factors.items():
            self.register_parameter(name, nn.Parameter(factor))
        self.dropout = nn.Dropout(dropout)
        self.scale = scale_of(factors, alpha)
        self.alpha = alpha
        self.is_enabled = True
        self._rank_dropout = rank_dropout
        self._module_dropout = (module_dropout,)  # in a tuple: it is the layer's module, not this one's
        self._kernel = tuple(kernel)
        self._vec_trick = vec_trick

    @property
    def module_dropout(self) -> ModuleDropout | None:
        """The module dropout of the layer, if it has one."""
        return self._module_dropout[0]

    def factors(self) -> dict[str, nn.Parameter]:
        """Return the trained factors by their names in files."""
        return dict(self.named_parameters())

    def stored(self, values: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], float | None]:
        """Return the factors and alpha as files hold them."""
        return dict(values), self.alpha

    def load(self, layer: AdapterLayer) -> None:
        """Take the factors of a layer in a file, in place; where its strength is another, the last one is scaled."""
        ratio = strength_ratio(scale_of(layer.factors, layer.alpha), self.scale)
        with torch.no_grad():
            for name, factor in self.factors().items():
                factor.copy_(layer.factors[name].float() * (ratio if name in _LAST else 1.0))

    def first(self) -> torch.Tensor:
        """Return w1, scaled, of shape (rows, columns)."""
        own = cast(Mapping[str, nn.Parameter], self._parameters)
        whole = own.get("lokr_w1")
        return (own["lokr_w1_a"] @ own["lokr_w1_b"] if whole is None else whole) * self.scale

    def second(self) -> torch.Tensor:
        """Return w2, of shape (rows, columns, kernel)."""
        own = cast(Mapping[str, nn.Parameter], self._parameters)
        whole, core = own.get("lokr_w2"), own.get("lokr_t2")
        if whole is not None:
            return whole.reshape(*whole.shape[:2], *self._kernel)
        a, b = own["lokr_w2_a"], own["lokr_w2_b"]
        if core is not None:
            return torch.einsum("ijkl,ip,jr->prkl", core, a, b)
        return (a @ b).reshape(a.shape[0], -1, *self._kernel)

    def weight(self) -> torch.Tensor:
        """Return what is added to the layer's weight, of shape (out, in, kernel)."""
        first, second = self.first(), self.second()
        return torch.kron(first.reshape(*first.shape, *(1 for _ in self._kernel)), second.contiguous())

    def weight_change(self, layer: AdaptedLayer) -> torch.Tensor:
        """Return the same in float32."""
        return self.weight().float()

    def forward(self, layer: AdaptedLayer, x: torch.Tensor) -> torch.Tensor:
        """Return what is added to the layer's output."""
        x = self.dropout(x.to(next(self.parameters()).dtype))
        if not self._vec_trick:
            return applied(layer, x, self.weight())
        if isinstance(layer, nn.Conv2d):
            return self._convolved(layer, x)
        first, second = self.first(), self.second()
        blocks = functional.linear(x.unflatten(-1, (first.shape[1], second.shape[1])), second)
        return functional.linear(blocks.transpose(-1, -2), first).transpose(-1, -2).flatten(-2)

    def _convolved(self, layer: nn.Conv2d, x_BCHW: torch.Tensor) -> torch.Tensor:
        first, second = self.first(), self.second()
        batch, num_blocks = x_BCHW.shape[0], first.shape[1]
        blocks = x_BCHW.reshape(batch * num_blocks, second.shape[1], *x_BCHW.shape[2:])
        blocks = functional.conv2d(blocks, second, None, layer.stride, layer.padding, layer.dilation)
        height, width = blocks.shape[2:]
        mixed = functional.conv2d(blocks.reshape(batch, num_blocks, -1, width), first[:, :, None, None])
        return mixed.reshape(batch, -1, height, width)

    def add_to(self, layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        """Return a layer's output with this added: its forward hook."""
        assert isinstance(layer, AdaptedLayer)
        if not self.is_enabled:
            return output
        change, dropout = self(layer, inputs[0]), self.module_dropout
        axis = 1 if isinstance(layer, nn.Conv2d) else output.ndim - 1
        change = dropped_channels(change, self._rank_dropout, training=self.training, channel_axis=axis)
        return output + (change if dropout is None else dropout.kept(change)).to(output.dtype)


def rank_in(factors: Mapping[str, torch.Tensor]) -> int | None:
    """Return the rank of the low-rank factors; None where both matrices are full."""
    return next((int(factors[name].shape[0]) for name in ("lokr_w1_b", "lokr_w2_b") if name in factors), None)


def scale_of(factors: Mapping[str, torch.Tensor], alpha: float | None) -> float:
    """Return alpha by rank; 1 for two full matrices, and where no alpha is given."""
    rank = rank_in(factors)
    return 1.0 if rank is None or alpha is None else alpha / rank
