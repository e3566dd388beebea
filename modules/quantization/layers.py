"""Quantizing the linear layers of a part."""

from __future__ import annotations

from torch import nn

from modules.quantization.chosen import ChosenFormat
from modules.quantization.linear import QuantizedLinear
from modules.settings.layer_filter import taken_layers


def quantize_layers(module: nn.Module, chosen: ChosenFormat) -> list[str]:
    """Replace the weights of a part's linear layers by quantized ones, one after the other, in place.

    Returns the names of the layers. Raises DarkroomError where an entry of the filter takes no layer.
    """
    linear = {name: layer for name, layer in module.named_modules() if type(layer) is nn.Linear}
    taken = taken_layers(chosen.layers, linear, page="Model")
    names = [name for name in taken if chosen.takes(name)]
    for name in names:
        parent, _, attribute = name.rpartition(".")
        # Nothing else may reference the layer: its weight is freed before the next one is packed.
        setattr(module.get_submodule(parent), attribute, QuantizedLinear(linear.pop(name), chosen.format))
    return names


def is_quantized(module: nn.Module) -> bool:
    """Return whether a part has a quantized layer."""
    return any(isinstance(layer, QuantizedLinear) for layer in module.modules())
