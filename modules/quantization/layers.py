"""Quantizing the linear layers of a part."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import nn

from modules.data.cache.store import EntryStore
from modules.formats.gguf_header import GgufTensor
from modules.formats.gguf_tensors import read_packed
from modules.quantization.chosen import ChosenFormat
from modules.quantization.gguf_blocks import GgufBlocks
from modules.quantization.linear import QuantizedLinear
from modules.quantization.packed_weight import PackedWeight, packed_weight
from modules.settings.layer_filter import taken_layers


def quantize_layers(module: nn.Module, chosen: ChosenFormat, *, cache: EntryStore | None = None) -> list[str]:
    """Replace the weights of a part's linear layers by quantized ones, one after the other, in place.

    A `cache` keeps what a residual takes time to compute. Returns the names of the layers. Raises DarkroomError where
    an entry of the filter takes no layer.
    """
    linear = _linear_layers(module)
    taken = taken_layers(chosen.layers, linear, page="Model")
    names = [name for name in taken if chosen.takes(name)]
    for name in names:
        # Nothing else may reference the layer: its weight is freed before the next one is packed.
        layer = linear.pop(name)
        weight = packed_weight(layer.weight.detach(), chosen.format, chosen.residual, cache)
        _replace(module, name, QuantizedLinear(layer, chosen.format, weight))
        del layer
    return names


def take_packed_layers(
    module: nn.Module, chosen: ChosenFormat, path: Path, packed: Mapping[str, GgufTensor]
) -> list[str]:
    """Give a part's linear layers the weights that a GGUF file has packed, in place; `packed` are those by name.

    The other layers have their weights already. Returns the names of the layers. Raises DarkroomError as
    `quantize_layers` does.
    """
    linear = _linear_layers(module)
    taken = taken_layers(chosen.layers, linear, page="Model")
    names = [name for name in taken if chosen.takes(name) and name in packed]
    for name in names:
        layer, tensor = linear[name], packed[name]
        data = read_packed(path, tensor)
        weight = PackedWeight(GgufBlocks(tensor.type), data, data.new_empty(0).float())
        _replace(module, name, QuantizedLinear(layer, chosen.format, weight))
    return names


def _linear_layers(module: nn.Module) -> dict[str, nn.Linear]:
    return {name: layer for name, layer in module.named_modules() if type(layer) is nn.Linear}


def _replace(module: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, attribute = name.rpartition(".")
    setattr(module.get_submodule(parent), attribute, layer)
