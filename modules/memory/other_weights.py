"""The weights of another model of the same architecture, to be exchanged with a module's."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from modules.quantization.linear import QuantizedLinear
from modules.system.errors import DarkroomError


class OtherWeights:
    """Exchanges the weights and buffers of a module with those of another one at each call of `exchange`.

    The modules and their parameters stay the same objects, with their hooks, adapters and offloaded layers; only their
    memory is exchanged. So both modules must be on the same device then.
    """

    def __init__(self, module: nn.Module, other: nn.Module, *, name: str, zeros: tuple[str, ...] = ()) -> None:
        """`module` must not have adapters yet; `name` is the user's name for the other model, which may lack weights
        whose names begin with one of `zeros`: they are taken as 0.

        Raises DarkroomError if the two do not have the same weights in the same formats.
        """
        self.other = other
        mine = _tensors(module)
        lacking = [path for path in mine.keys() - _tensors(other).keys() if path.startswith(zeros)]
        theirs = _tensors(other) | {path: nn.Parameter(torch.zeros_like(mine[path]), False) for path in lacking}
        layers = [layer for layer in _quantized_layers(module).items() if layer[1].form.is_stored]
        packed = {f"{path}.{weight}" for path, _ in layers for weight in ("packed", "scales")}
        _require_equal(mine, theirs, packed, name)
        self._pairs = [(tensor, theirs[path]) for path, tensor in mine.items()]
        other_layers = _quantized_layers(other)
        self._layers = [(layer, other_layers[path]) for path, layer in layers]

    @torch.no_grad()
    def exchange(self) -> None:
        """Exchange the weights; a second time restores both."""
        for mine, theirs in self._pairs:
            mine.data, theirs.data = theirs.data, mine.data
        for layer, other in self._layers:
            layer.exchange_packing(other)


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _quantized_layers(module: nn.Module) -> dict[str, QuantizedLinear]:
    return {path: layer for path, layer in module.named_modules() if isinstance(layer, QuantizedLinear)}


def _require_equal(
    mine: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor], packed: set[str], name: str
) -> None:
    """Raise DarkroomError if the tensors differ in more than their values; packed ones may differ in size."""
    for path in sorted(mine.keys() | theirs.keys()):
        a, b = mine.get(path), theirs.get(path)
        is_equal = a is not None and b is not None and (path in packed or (a.shape, a.dtype) == (b.shape, b.dtype))
        if not is_equal:
            there = "missing" if b is None else f"{tuple(b.shape)} in {str(b.dtype).removeprefix('torch.')}"
            here = "nothing" if a is None else f"{tuple(a.shape)} in {str(a.dtype).removeprefix('torch.')}"
            raise DarkroomError(
                f"{name} cannot be sampled in place of the base model, because it has another architecture: {path} is "
                f"{there} where the base model has {here}.",
                advice="Choose a model that was made from the base model, or leave the sampling model empty.",
            )
