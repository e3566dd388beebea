"""What LoHa and LoKr share: factors that are combined to a matrix, which a hook on the layer applies."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from modules.adapters.delta_adapter import AdaptedLayer, strength_ratio
from modules.adapters.layer_dropout import ModuleDropout, dropped_channels
from modules.adapters.layer_input import layer_input
from modules.formats.adapter_layers import AdapterLayer


class FactorDelta(nn.Module):
    """What is added to one linear or convolution layer. `factors` are named as in LyCORIS files.

    A subclass computes `weight`, `forward` and `scale_of`, and names the factors that are scaled in `last`: those that
    are zero at first.
    """

    last: tuple[str, ...] = ()

    def __init__(
        self,
        factors: Mapping[str, torch.Tensor],
        *,
        alpha: float,
        dropout: float,
        rank_dropout: float,
        module_dropout: ModuleDropout | None,
    ) -> None:
        """The dropouts are of inputs, of outputs and of the whole."""
        super().__init__()
        for name, factor in factors.items():
            self.register_parameter(name, nn.Parameter(factor))
        self.dropout = nn.Dropout(dropout)
        self.alpha = alpha
        self.scale = self.scale_of(factors, alpha)
        self.is_enabled = True
        self._rank_dropout = rank_dropout
        self._module_dropout = (module_dropout,)  # in a tuple: it is the layer's module, not this one's

    @staticmethod
    def scale_of(factors: Mapping[str, torch.Tensor], alpha: float | None) -> float:
        """Return the factor of the product: alpha by rank; 1 where no alpha is given."""
        raise NotImplementedError

    def weight(self) -> torch.Tensor:
        """Return what is added to the layer's weight, of shape (out, in, kernel), in the dtype of the factors."""
        raise NotImplementedError

    @property
    def module_dropout(self) -> ModuleDropout | None:
        """The module dropout of the layer, if it has one."""
        return self._module_dropout[0]

    def taken(self, x: torch.Tensor) -> torch.Tensor:
        """Return a layer's input as the products with the factors take it, after the input dropout."""
        dtype = next(self.parameters()).dtype
        dropped: torch.Tensor = self.dropout(layer_input(x, dtype, keeps_cast=self.dropout.p > 0))
        return dropped

    def factors(self) -> dict[str, nn.Parameter]:
        """Return the trained factors by their names in files."""
        return dict(self.named_parameters())

    def stored(self, values: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], float | None]:
        """Return the factors and alpha as files hold them."""
        return dict(values), self.alpha

    def load(self, layer: AdapterLayer) -> None:
        """Take the factors of a layer in a file, in place; where its strength is another, the last one is scaled."""
        ratio = strength_ratio(self.scale_of(layer.factors, layer.alpha), self.scale)
        with torch.no_grad():
            for name, factor in self.factors().items():
                factor.copy_(layer.factors[name].float() * (ratio if name in self.last else 1.0))

    def weight_change(self, layer: AdaptedLayer) -> torch.Tensor:
        """Return what it adds to the weight of its layer, in float32."""
        return self.weight().float()

    def add_to(self, layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        """Return a layer's output with this added: its forward hook."""
        assert isinstance(layer, AdaptedLayer)
        if not self.is_enabled:
            return output
        change, dropout = self(layer, inputs[0]), self.module_dropout
        axis = 1 if isinstance(layer, nn.Conv2d) else output.ndim - 1
        change = dropped_channels(change, self._rank_dropout, training=self.training, channel_axis=axis)
        return output + (change if dropout is None else dropout.kept(change)).to(output.dtype)
