"""LoHa's layers: `h = W x + scale * ((w1_a w1_b) * (w2_a w2_b)) x`, added by a hook on each layer.

peft's LoHa keeps both low-rank products of each pass for the backward pass, each as large as the weight; here they are
computed again. The factors, their shapes and their initial values are the same as in LyCORIS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn

from modules.adapters.changes import by_rank
from modules.adapters.delta_adapter import AdaptedLayer, DeltaKind, FactorDelta
from modules.adapters.kept_layers import apply_weight
from modules.adapters.layer_dropout import ModuleDropout, attach_module_dropout
from modules.adapters.loha import LOHA, Loha, factor_shapes
from modules.adapters.ranks import at_layer, is_convolution, ranks_of
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_types import DORA_SCALE
from modules.system.devices import dtype_of


def product(factors: Mapping[str, torch.Tensor], alpha: float | None, weight: torch.Tensor) -> torch.Tensor:
    """Return the change of a weight (out, in, kernel) by the factors of a file, in float32."""
    in_float32 = {name: factor.float() for name, factor in factors.items()}
    one, other = (_side(in_float32, n) for n in (1, 2))
    return by_rank(one * other, alpha, int(in_float32["hada_w1_b"].shape[0]), weight)


def _side(factors: Mapping[str, torch.Tensor], number: int) -> torch.Tensor:
    a, b, core = factors[f"hada_w{number}_a"], factors[f"hada_w{number}_b"], factors.get(f"hada_t{number}")
    return a @ b if core is None else torch.einsum("ijkl,jr,ip->prkl", core, b, a)


class HadamardProduct(torch.autograd.Function):
    """`(a1 @ b1) * (a2 @ b2)` of four matrices. The backward pass computes the two products again instead of keeping
    them.
    """

    @staticmethod
    def forward(ctx: Any, a1: torch.Tensor, b1: torch.Tensor, a2: torch.Tensor, b2: torch.Tensor) -> torch.Tensor:
        """Return the product, of shape (rows of a, columns of b)."""
        ctx.save_for_backward(a1, b1, a2, b2)
        return (a1 @ b1) * (a2 @ b2)  # not in place: selective checkpointing may have kept the first

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the gradients of the four matrices."""
        a1, b1, a2, b2 = ctx.saved_tensors
        one = grad * (a2 @ b2)
        gradients = [one @ b1.T, a1.T @ one]
        del one
        other = grad * (a1 @ b1)
        return (*gradients, other @ b2.T, a2.T @ other)


class HadamardDelta(FactorDelta):
    """LoHa's change of one linear or convolution layer. `factors` are named as in LyCORIS files."""

    last = ("hada_w2_a",)

    def __init__(
        self,
        shape: Sequence[int],
        factors: Mapping[str, torch.Tensor],
        *,
        alpha: float,
        dropout: float = 0.0,
        rank_dropout: float = 0.0,
        module_dropout: ModuleDropout | None = None,
    ) -> None:
        """`shape` is the shape of the layer's weight. The dropouts leave out inputs, outputs and the whole change."""
        super().__init__(
            factors, alpha=alpha, dropout=dropout, rank_dropout=rank_dropout, module_dropout=module_dropout
        )
        self._shape = tuple(shape)

    @staticmethod
    def scale_of(factors: Mapping[str, torch.Tensor], alpha: float | None) -> float:
        """Return alpha by rank; 1 if no alpha is given."""
        return 1.0 if alpha is None else alpha / factors["hada_w1_b"].shape[0]

    def weight(self) -> torch.Tensor:
        """Return the change of the layer's weight, of shape (out, in, kernel), in the dtype of the factors."""
        with torch.autocast(next(self.parameters()).device.type, enabled=False):
            (a1, b1), (a2, b2) = (self._side(n) for n in (1, 2))
            product: torch.Tensor = HadamardProduct.apply(a1 * self.scale, b1, a2, b2)  # type: ignore[no-untyped-call]
        return product.reshape(self._shape)

    def forward(self, layer: AdaptedLayer, x: torch.Tensor) -> torch.Tensor:
        """Return the change of the layer's output."""
        return apply_weight(layer, self.cast_input(x), self.weight())

    def _side(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a (out, rank) and b (rank, in * kernel) of one of the two products; a Tucker core is part of b."""
        parameters = cast(Mapping[str, nn.Parameter], self._parameters)
        a, b, core = parameters[f"hada_w{number}_a"], parameters[f"hada_w{number}_b"], parameters.get(f"hada_t{number}")
        return (a, b) if core is None else (a.T, torch.einsum("ijkl,jr->irkl", core, b).flatten(1))


def _begin_delta(
    layer: AdaptedLayer, part: str, path: str, settings: Loha, stored: AdapterLayer | None
) -> HadamardDelta:
    """Return a LoHa for a layer, not yet on it: fresh, or with the shapes of a file."""
    weight = tuple(layer.weight.shape)
    if stored is not None:
        factors = {name: torch.empty(shape) for name, shape in stored.shapes.items() if name != DORA_SCALE}
    else:
        shapes = factor_shapes(at_layer(settings, part, path, weight), weight)
        factors = {name: _init_factor(name, torch.empty(shape)) for name, shape in shapes.items()}
    rank = factors["hada_w1_b"].shape[0]
    return HadamardDelta(
        weight,
        {name: factor.to(layer.weight.device, dtype_of(settings.dtype)) for name, factor in factors.items()},
        alpha=ranks_of(settings).alpha_at(part, path, rank, is_convolution=is_convolution(weight)),
        dropout=settings.dropout,
        rank_dropout=settings.rank_dropout,
        module_dropout=attach_module_dropout(layer, settings.module_dropout),
    )


def _init_factor(name: str, factor: torch.Tensor) -> torch.Tensor:
    """Initialize a factor as LyCORIS does: one of them is zero, so that the model is unchanged at first."""
    if name == "hada_w2_a":
        return nn.init.zeros_(factor)
    return nn.init.normal_(factor, std=1.0 if name.endswith("_b") else 0.1)


LOHA_KIND = DeltaKind(LOHA.label, "loha", _begin_delta)
