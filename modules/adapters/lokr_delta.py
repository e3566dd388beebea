"""What LoKr adds to one layer: `scale * kron(w1, w2) x`, of its factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from modules.adapters.delta_adapter import AdaptedLayer, applied
from modules.adapters.factor_delta import FactorDelta
from modules.adapters.layer_dropout import ModuleDropout


class KroneckerDelta(FactorDelta):
    """What LoKr adds to one linear or convolution layer. `factors` are named as in LyCORIS files."""

    last = ("lokr_w2", "lokr_w2_b")

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
        super().__init__(
            factors, alpha=alpha, dropout=dropout, rank_dropout=rank_dropout, module_dropout=module_dropout
        )
        self._kernel = tuple(kernel)
        self._vec_trick = vec_trick

    @staticmethod
    def scale_of(factors: Mapping[str, torch.Tensor], alpha: float | None) -> float:
        """Return alpha by rank; 1 for two full matrices, and where no alpha is given."""
        rank = rank_in(factors)
        return 1.0 if rank is None or alpha is None else alpha / rank

    def stored(self, values: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], float | None]:
        """Return the factors and alpha as files hold them: Tucker's core is multiplied into w2_b, of the same rank.

        ComfyUI skips layers with such a core, Forge fails on them, and the loader of LyCORIS does, too.
        """
        found = dict(values)
        if "lokr_t2" in found:
            core, a, b = (found.pop(name).float() for name in ("lokr_t2", "lokr_w2_a", "lokr_w2_b"))
            found["lokr_w2_a"] = a.T.contiguous()
            found["lokr_w2_b"] = torch.einsum("ijkl,jr->irkl", core, b).flatten(1).contiguous()
        return found, self.alpha

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

    def forward(self, layer: AdaptedLayer, x: torch.Tensor) -> torch.Tensor:
        """Return what is added to the layer's output."""
        x = self.taken(x)
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


def rank_in(factors: Mapping[str, torch.Tensor]) -> int | None:
    """Return the rank of the low-rank factors; None where both matrices are full."""
    return next((int(factors[name].shape[0]) for name in ("lokr_w1_b", "lokr_w2_b") if name in factors), None)
