"""LoRA's product with more than peft's: rank dropout, module dropout, and the initial product of PiSSA.

PiSSA (Meng et al. 2024) begins with the principal part of the weight, and freezes the rest: `W - s B0 A0 + s B A`. Here
the model's weight is not changed: the frozen `B0 A0` is a second product, which is subtracted. The function is the
same, without the rounding of a changed 16-bit weight, and the original model is still there for reference predictions.
A file for the original model holds both products, as a LoRA of twice the rank (appendix C of the paper).
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from peft.tuners.lora.layer import LoraVariant
from torch import nn
from torch.nn import functional

from modules.adapters.layer_dropout import ModuleDropout, drop_channels
from modules.families.parts.circular_padding import pad_input

_NAME = "initial_product"
_OVERSAMPLING, _ITERATIONS = 8, 4  # Halko et al. 2011, algorithm 4.4, with what its section 1.3 recommends
_EXACT_UP_TO = 256


class InitialProduct(nn.Module):
    """The frozen matrices A0 and B0 that a layer's LoRA began with. They are not weights of the model."""

    def __init__(self, down: torch.Tensor, up: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("down", down, persistent=False)
        self.register_buffer("up", up, persistent=False)

    def forward(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return B0 A0 x, unscaled."""
        down, up = self.factors
        if isinstance(layer, nn.Conv2d):
            low = functional.conv2d(pad_input(layer, x), down, None, layer.stride, layer.padding, layer.dilation)
            return functional.conv2d(low, up)
        return functional.linear(functional.linear(x, down), up)

    @property
    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A0 (rank, in, kernel) and B0 (out, rank, 1...)."""
        return self.get_buffer("down"), self.get_buffer("up")


class Product(LoraVariant):  # type: ignore[misc]
    """The product of one layer, which peft calls in place of its own."""

    def __init__(self, rank_dropout: float, module_dropout: ModuleDropout | None) -> None:
        self.rank_dropout = rank_dropout
        self.module_dropout = module_dropout

    # An instance, while peft's variants are static: its probabilities differ by layer.
    def forward(
        self, module: LoraLayer, active_adapter: str, x: torch.Tensor, result: torch.Tensor, **kwargs: Any
    ) -> torch.Tensor:
        """Return the layer's output with the LoRA added; `result` is the output without it, x the layer's input."""
        layer = module.get_base_layer()
        low = module.lora_A[active_adapter](module.lora_dropout[active_adapter](x))
        axis = 1 if isinstance(layer, nn.Conv2d) else low.ndim - 1
        low = drop_channels(low, self.rank_dropout, training=module.training, channel_axis=axis)
        change = module.lora_B[active_adapter](low)
        if (initial := initial_product(module)) is not None:
            change = change - initial(layer, x)
        change = change * module.scaling[active_adapter]
        return result + (change if self.module_dropout is None else self.module_dropout.mask(change))


def initial_product(layer: nn.Module) -> InitialProduct | None:
    """Return the product that a layer's LoRA began with; None if it began with zero."""
    product = getattr(layer, _NAME, None)
    return product if isinstance(product, InitialProduct) else None


def begin_as_principal_part(module: LoraLayer, adapter: str) -> None:
    """Set a fresh LoRA to the principal part of its layer's weight (eq. 3 and 4 of the paper), and freeze a copy.

    Ranks beyond the rank of the weight begin as in any LoRA. The decomposition draws from the global generator. In
    place.
    """
    down, up = module.lora_A[adapter].weight, module.lora_B[adapter].weight
    weight = module.get_base_layer().weight
    left, sizes, right = _principal(weight.detach().flatten(1).double(), down.shape[0])
    roots = (sizes / module.scaling[adapter]).sqrt()
    num = len(sizes)
    with torch.no_grad():
        down[:num] = (roots[:, None] * right).reshape(num, *down.shape[1:]).to(down)
        up[:, :num] = (left * roots).reshape(up.shape[0], num, *up.shape[2:]).to(up)
    module.add_module(_NAME, InitialProduct(down.detach().clone(), up.detach().clone()))


def _principal(matrix: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the largest singular values of a matrix and their vectors: (rows, k), (k,) and (k, columns)."""
    rank = min(rank, *matrix.shape)
    if min(matrix.shape) <= max(_EXACT_UP_TO, rank + _OVERSAMPLING):
        left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
    else:
        left, sizes, vectors = torch.svd_lowrank(matrix, q=rank + _OVERSAMPLING, niter=_ITERATIONS)
        right = vectors.T
    return left[:, :rank], sizes[:rank], right[:rank]
