"""Adapters whose modules are added to the outputs of their layers by a hook, and the deltas that multiply factors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import nn

from modules.adapters.changes import does_not_fit
from modules.adapters.decomposition import NAME as DORA
from modules.adapters.decomposition import Decomposition, attach_decomposition, magnitudes_in
from modules.adapters.layer_dropout import ModuleDropout, drop_channels
from modules.families.lora_naming import LoraNaming
from modules.formats.adapter_forms import FileForm
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_types import DORA_SCALE
from modules.formats.lora_files import to_kohya
from modules.formats.safetensors_io import Writable
from modules.system.devices import CPU, seeded_global_rng
from modules.system.errors import DarkroomError

AdaptedLayer = nn.Linear | nn.Conv2d


class LayerDelta(Protocol):
    """An adapter's change of one layer. It is also an `nn.Module`, whose parameters are the factors."""

    is_enabled: bool

    @property
    def module_dropout(self) -> ModuleDropout | None:
        """The module dropout of the layer, if it has one."""
        ...

    def factors(self) -> dict[str, nn.Parameter]:
        """Return the trained factors by their names in files."""
        ...

    def in_file_form(self, values: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], float | None]:
        """Return the factors and the alpha for a file, computed from `values` of the trained factors."""
        ...

    def load(self, layer: AdapterLayer) -> None:
        """Copy the factors of a file into this one, in place; the strength does not change."""
        ...

    def weight_change(self, layer: AdaptedLayer) -> torch.Tensor:
        """Return the change of its layer's weight, of shape (out, in, kernel), in float32."""
        ...

    def add_to(self, layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        """Return the layer's output with this added: its forward hook."""
        ...


@dataclass(frozen=True, eq=False)
class DeltaAdapter:
    """The adapter of one part: `deltas` by the dotted names of the layers they are on, as submodules named `name`.

    `decompositions` are DoRA's magnitudes of these layers, if they are trained.
    """

    part: str
    module: nn.Module
    name: str
    deltas: Mapping[str, LayerDelta]
    decompositions: Mapping[str, Decomposition] = field(default_factory=dict)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the trainable parameters by the part's name and their dotted name in it."""
        factors = {
            self._name(path, factor): parameter
            for path, delta in self.deltas.items()
            for factor, parameter in delta.factors().items()
        }
        return factors | {
            self._magnitudes(path): decomposition.magnitudes for path, decomposition in self.decompositions.items()
        }

    def stored_layers(self, values: Mapping[str, torch.Tensor]) -> list[AdapterLayer]:
        """Return the factors of every layer out of `values`, which are named as `parameters` names them."""
        layers = []
        for path, delta in self.deltas.items():
            factors, alpha = delta.in_file_form({f: values[self._name(path, f)] for f in delta.factors()})
            if path in self.decompositions:
                factors[DORA_SCALE] = values[self._magnitudes(path)]
            layers.append(AdapterLayer(self.part, path, factors, alpha))
        return layers

    def fixed(self) -> dict[str, torch.Tensor]:
        """Return nothing: every tensor is either trained or part of the model."""
        return {}

    def changes_nothing(self) -> bool:
        """Return False: even if the factors change nothing, their product is rounded."""
        return False

    @contextlib.contextmanager
    def disabled(self) -> Iterator[None]:
        """Disable the adapter inside the context, for a reference prediction; enable it again even after an exception.

        No gradient is recorded inside: a backward pass through a disabled adapter would give it none, silently.
        """
        both: tuple[LayerDelta | Decomposition, ...] = (*self.deltas.values(), *self.decompositions.values())
        with torch.no_grad():
            for change in both:
                change.is_enabled = False
            try:
                yield
            finally:
                for change in both:
                    change.is_enabled = True

    def _name(self, path: str, factor: str) -> str:
        return f"{self.part}.{path}.{self.name}.{attribute_of(factor)}"

    def _magnitudes(self, path: str) -> str:
        return f"{self.part}.{path}.{DORA}.magnitudes"


@dataclass(frozen=True, eq=False)
class DeltaKind:
    """A kind of such adapters, as the program handles any adapter (`AdapterKind`); its files have the kohya form only.

    `begin(layer, part, path, settings, stored)` returns a delta that is not yet on the layer: fresh, drawn from the
    global generator, or with the shapes of the layer in a file.
    """

    label: str
    name: str
    begin: Callable[[AdaptedLayer, str, str, Any, AdapterLayer | None], LayerDelta]

    def attach(
        self,
        part: str,
        module: nn.Module,
        targets: Sequence[str],
        settings: Any,
        *,
        seed: int,
        start: Sequence[AdapterLayer] = (),
        where: str = "",
    ) -> DeltaAdapter:
        """Put the adapter on the target layers of a part; the layers of `start` get its factors."""
        module.requires_grad_(False)
        in_file, deltas = {layer.path: layer for layer in start}, dict[str, LayerDelta]()
        with seeded_global_rng(seed, CPU):
            for path in targets:
                deltas[path] = self.begin(layer_at(module, path, self.label), part, path, settings, in_file.get(path))
        adapter = attach_deltas(part, module, self.name, deltas, start, where)
        return add_decomposition(adapter, settings, start, where) if getattr(settings, "decompose", False) else adapter

    def write(
        self, layers: Iterable[AdapterLayer], form: FileForm, naming: LoraNaming
    ) -> tuple[Mapping[str, Writable], dict[str, str]]:
        """Return the tensors of the kohya form, the only one there is."""
        return to_kohya(layers, naming.kohya_name), {}


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


def add_decomposition(adapter: DeltaAdapter, settings: Any, start: Sequence[AdapterLayer], where: str) -> DeltaAdapter:
    """Return an adapter with DoRA's magnitudes on its layers, taken from `start`, layers of the file named `where`, if
    these have magnitudes.
    """
    stored, decompositions = magnitudes_in(adapter.module, start, where), {}
    for path, delta in adapter.deltas.items():
        layer = layer_at(adapter.module, path, adapter.name)
        decompositions[path] = attach_decomposition(
            layer,
            layer,
            partial(delta.weight_change, layer),
            on_outputs=settings.decompose_output_axis,
            has_eps=settings.decompose_norm_eps,
            dropout=delta.module_dropout,
            magnitudes=stored.get(path),
        )
    return replace(adapter, decompositions=decompositions)


def layer_at(module: nn.Module, path: str, adapter: str) -> AdaptedLayer:
    """Return the layer with a dotted name. Raises DarkroomError if the adapter cannot be trained on it."""
    layer = module.get_submodule(path)
    if not isinstance(layer, AdaptedLayer) or getattr(layer, "groups", 1) != 1:
        raise DarkroomError(
            f"{adapter} cannot be trained on {path}, a layer of another kind.", advice="Choose other layers."
        )
    return layer


def strength_ratio(in_file: float, current: float) -> float:
    """Return the multiplier for a factor of a file, so that it has the same effect in an adapter of another strength.

    A current strength of 0 occurs in files with an alpha of 0 that are only read.
    """
    return in_file / current if current else 1.0


def attribute_of(factor: str) -> str:
    """Return the name of the parameter for a factor: names of parameters cannot contain dots."""
    return factor.replace(".", "_")


def with_matrices(
    factors: Mapping[str, torch.Tensor], alpha: float | None, rank: float | None
) -> dict[str, torch.Tensor]:
    """Return factors as in LyCORIS' files: matrices of OneTrainer have the shape (rows, columns, 1, 1)."""
    return {n: f.flatten(1) if n.endswith(("_a", "_b")) and f.ndim > 2 else f for n, f in factors.items()}


class FactorDelta(nn.Module):
    """A change of one linear or convolution layer. `factors` are named as in LyCORIS files.

    A subclass computes `weight`, `forward` and `scale_of`, and names in `last` the factors that are scaled: those that
    begin as zero.
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
        """The three dropouts leave out inputs, outputs and the whole change."""
        super().__init__()
        for name, factor in factors.items():
            self.register_parameter(name, nn.Parameter(factor))
        self.dropout = nn.Dropout(dropout)
        self.alpha = alpha
        self.scale = self.scale_of(factors, alpha)
        self.is_enabled = True
        self._rank_dropout = rank_dropout
        self._module_dropout = (module_dropout,)  # in a tuple: it is a submodule of the layer, not of this module

    @staticmethod
    def scale_of(factors: Mapping[str, torch.Tensor], alpha: float | None) -> float:
        """Return the factor of the product: alpha by rank; 1 if no alpha is given."""
        raise NotImplementedError

    def weight(self) -> torch.Tensor:
        """Return the change of the layer's weight, of shape (out, in, kernel), in the dtype of the factors."""
        raise NotImplementedError

    @property
    def module_dropout(self) -> ModuleDropout | None:
        """The module dropout of the layer, if it has one."""
        return self._module_dropout[0]

    def cast_input(self, x: torch.Tensor) -> torch.Tensor:
        """Return a layer's input in the dtype of the products with the factors, after the input dropout."""
        dtype = next(self.parameters()).dtype
        dropped: torch.Tensor = self.dropout(layer_input(x, dtype, keeps_cast=self.dropout.p > 0))
        return dropped

    def factors(self) -> dict[str, nn.Parameter]:
        """Return the trained factors by their names in files."""
        return dict(self.named_parameters())

    def in_file_form(self, values: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], float | None]:
        """Return the factors and alpha as files hold them."""
        return dict(values), self.alpha

    def load(self, layer: AdapterLayer) -> None:
        """Copy the factors of a layer in a file, in place; if the file's strength differs, the last one is scaled."""
        ratio = strength_ratio(self.scale_of(layer.factors, layer.alpha), self.scale)
        with torch.no_grad():
            for name, factor in self.factors().items():
                factor.copy_(layer.factors[name].float() * (ratio if name in self.last else 1.0))

    def weight_change(self, layer: AdaptedLayer) -> torch.Tensor:
        """Return the change of its layer's weight, in float32."""
        return self.weight().float()

    def add_to(self, layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        """Return a layer's output with the change added: its forward hook."""
        assert isinstance(layer, AdaptedLayer)
        if not self.is_enabled:
            return output
        change, dropout = self(layer, inputs[0]), self.module_dropout
        axis = 1 if isinstance(layer, nn.Conv2d) else output.ndim - 1
        change = drop_channels(change, self._rank_dropout, training=self.training, channel_axis=axis)
        return output + (change if dropout is None else dropout.mask(change)).to(output.dtype)


def layer_input(x: torch.Tensor, dtype: torch.dtype, *, keeps_cast: bool) -> torch.Tensor:
    """Return a layer's input for a product with adapter weights of this dtype.

    `keeps_cast` is for inputs whose cast matters: with dropout before the product, because its random numbers depend on
    the dtype, and for several products, whose gradients are added before they are rounded.
    """
    if dtype == torch.float32 and not keeps_cast and _is_autocast(x):
        return x
    return x.to(dtype)


def _is_autocast(x: torch.Tensor) -> bool:
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)
