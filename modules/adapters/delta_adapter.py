"""An adapter of modules that a hook adds to the outputs of their layers: what LoHa and OFT have in common."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import nn
from torch.nn import functional

from modules.adapters.changes import does_not_fit
from modules.formats.adapter_layers import AdapterLayer
from modules.system.errors import DarkroomError

AdaptedLayer = nn.Linear | nn.Conv2d


class LayerDelta(Protocol):
    """What an adapter adds to one layer. It is an `nn.Module`, too, and its parameters are the factors."""

    is_enabled: bool

    def factors(self) -> dict[str, nn.Parameter]:
        """Return the trained factors by their names in files."""
        ...

    def stored(self, values: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], float | None]:
        """Return the factors that files hold, and alpha, out of values for the trained ones."""
        ...

    def load(self, layer: AdapterLayer) -> None:
        """Take the factors of a file, in place; the strength stays what it was."""
        ...

    def weight_change(self, layer: AdaptedLayer) -> torch.Tensor:
        """Return what it adds to the weight of its layer, of shape (out, in, kernel), in float32."""
        ...

    def add_to(self, layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        """Return the layer's output with this added: its forward hook."""
        ...


@dataclass(frozen=True, eq=False)
class DeltaAdapter:
    """The adapter of one part: `deltas` by the dotted names of the layers they are on, as submodules named `name`."""

    part: str
    module: nn.Module
    name: str
    deltas: Mapping[str, LayerDelta]

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the trainable parameters by the part's name and their dotted name in it."""
        return {
            self._name(path, factor): parameter
            for path, delta in self.deltas.items()
            for factor, parameter in delta.factors().items()
        }

    def stored_layers(self, values: Mapping[str, torch.Tensor]) -> list[AdapterLayer]:
        """Return the factors of every layer out of `values`, which are named as `parameters` names them."""
        found = []
        for path, delta in self.deltas.items():
            factors, alpha = delta.stored({f: values[self._name(path, f)] for f in delta.factors()})
            found.append(AdapterLayer(self.part, path, factors, alpha))
        return found

    @contextlib.contextmanager
    def disabled(self) -> Iterator[None]:
        """Be without the adapter for a while, for a reference prediction; it is back also after an exception.

        No gradient is recorded inside: a backward pass through a disabled adapter would give it none, silently.
        """
        with torch.no_grad():
            for delta in self.deltas.values():
                delta.is_enabled = False
            try:
                yield
            finally:
                for delta in self.deltas.values():
                    delta.is_enabled = True

    def _name(self, path: str, factor: str) -> str:
        return f"{self.part}.{path}.{self.name}.{attribute_of(factor)}"


def attach_deltas(
    part: str, module: nn.Module, name: str, deltas: Mapping[str, LayerDelta], start: Sequence[AdapterLayer], where: str
) -> DeltaAdapter:
    """Put deltas on their layers, with the factors of `start`, layers of the file named `where`.

    Raises DarkroomError if these do not fit each other or the layer.
    """
    for stored in start:
        delta, layer = deltas[stored.path], layer_at(module, stored.path, name)
        fits = False
        with torch.no_grad(), contextlib.suppress(RuntimeError):  # which is what factors that do not fit raise
            delta.load(stored)
            fits = delta.weight_change(layer).shape == layer.weight.shape
        if not fits:
            raise does_not_fit(stored, tuple(layer.weight.shape), where)
    for path, delta in deltas.items():
        layer = layer_at(module, path, name)
        layer.add_module(name, cast(nn.Module, delta))
        layer.register_forward_hook(delta.add_to)
    return DeltaAdapter(part, module, name, deltas)


def layer_at(module: nn.Module, path: str, adapter: str) -> AdaptedLayer:
    """Return the layer with a dotted name. Raises DarkroomError if the adapter cannot be trained on it."""
    layer = module.get_submodule(path)
    if not isinstance(layer, AdaptedLayer) or getattr(layer, "groups", 1) != 1:
        raise DarkroomError(
            f"{adapter} cannot be trained on {path}, a {type(layer).__name__}.", advice="Choose other layers."
        )
    return layer


def attribute_of(factor: str) -> str:
    """Return the name of the parameter for a factor: parameters have no dots in their names."""
    return factor.replace(".", "_")


def applied(layer: AdaptedLayer, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the layer's function of x with another weight and without a bias."""
    if isinstance(layer, nn.Conv2d):
        return functional.conv2d(x, weight, None, layer.stride, layer.padding, layer.dilation)
    return functional.linear(x, weight)


def with_drops(layer: AdaptedLayer, change: torch.Tensor, *, outputs: float, whole: float) -> torch.Tensor:
    """Return a change of a layer's output in training: each image without some channels of it, or without any of it.

    As LyCORIS' `rank_dropout` and `module_dropout` of LoHa: the probabilities of dropping a channel, and of dropping
    everything. What is kept is not scaled up.
    """
    if outputs:
        is_convolution = isinstance(layer, nn.Conv2d)
        batch, channels = change.shape[0], change.shape[1 if is_convolution else -1]
        inner = (channels, 1, 1) if is_convolution else (*(1 for _ in change.shape[2:]), channels)
        change = change * (torch.rand(batch, *inner, device=change.device) >= outputs)
    if whole:
        change = change * (torch.rand((), device=change.device) >= whole)
    return change
