"""LoKr's layers: `h = W x + scale * kron(w1, w2) x`, added by a hook on each layer.

peft has LoKr, too, but builds the whole product in each pass (as large as all the layers' weights), has no full matrix
and no dropout of the inputs. The factors, their shapes and how they begin are those of LyCORIS.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from modules.adapters.changes import does_not_fit
from modules.adapters.decomposition import NAME as DORA
from modules.adapters.decomposition import Decomposition, attach_decomposition, magnitudes_in
from modules.adapters.layer_dropout import attach_module_dropout
from modules.adapters.lokr import Lokr, factor_shapes
from modules.adapters.lokr_delta import KroneckerDelta, rank_in, scale_of
from modules.adapters.ranks import at_layer, is_convolution, ranks_of
from modules.adapters.spec import FileForm
from modules.families.spec import LoraNaming
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_names import DORA_SCALE
from modules.formats.lora_files import to_kohya
from modules.formats.safetensors_io import Writable
from modules.system.devices import CPU
from modules.system.dtypes import dtype_of
from modules.system.errors import DarkroomError
from modules.system.global_rng import seeded_global_rng

_NAME = "lokr"
_Layer = nn.Linear | nn.Conv2d


@dataclass(frozen=True, eq=False)
class LokrAdapter:
    """LoKr on one part: `deltas` by the dotted names of the layers they are on."""

    part: str
    module: nn.Module
    deltas: Mapping[str, KroneckerDelta]
    decompositions: Mapping[str, Decomposition] = field(default_factory=dict)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the trainable parameters by the part's name and their dotted name in it."""
        factors = {
            self._name(path, factor): parameter
            for path, delta in self.deltas.items()
            for factor, parameter in delta.named_parameters()
        }
        return factors | {self._magnitudes(path): own.magnitudes for path, own in self.decompositions.items()}

    def stored_layers(self, values: Mapping[str, torch.Tensor]) -> list[AdapterLayer]:
        """Return the factors of every layer out of `values`, which are named as `parameters` names them."""
        return [self._stored(path, delta, values) for path, delta in self.deltas.items()]

    def _stored(self, path: str, delta: KroneckerDelta, values: Mapping[str, torch.Tensor]) -> AdapterLayer:
        factors = {name: values[self._name(path, name)] for name, _ in delta.named_parameters()}
        if path in self.decompositions:
            factors[DORA_SCALE] = values[self._magnitudes(path)]
        return AdapterLayer(self.part, path, factors, delta.alpha)

    def load(self, layers: Sequence[AdapterLayer]) -> None:
        """Take the factors of layers, all of which the adapter has, in the shapes that it has.

        The strength stays what it was: where the scale is another, the last factor is multiplied.
        """
        with torch.no_grad():
            for layer in layers:
                delta = self.deltas[layer.path]
                ratio = scale_of(layer.factors, layer.alpha) / delta.scale
                for name, factor in delta.named_parameters():
                    is_last = name in ("lokr_w2", "lokr_w2_b")
                    factor.copy_(layer.factors[name].float() * (ratio if is_last else 1.0))

    @contextlib.contextmanager
    def disabled(self) -> Iterator[None]:
        """Be without the adapter for a while, for a reference prediction; it is back also after an exception.

        No gradient is recorded inside: a backward pass through a disabled adapter would give it none, silently.
        """
        with torch.no_grad():
            both: tuple[KroneckerDelta | Decomposition, ...] = (*self.deltas.values(), *self.decompositions.values())
            for own in both:
                own.is_enabled = False
            try:
                yield
            finally:
                for own in both:
                    own.is_enabled = True

    def _name(self, path: str, factor: str) -> str:
        return f"{self.part}.{path}.{_NAME}.{factor}"

    def _magnitudes(self, path: str) -> str:
        return f"{self.part}.{path}.{DORA}.magnitudes"


class LokrKind:
    """LoKr, as the program handles any adapter (`AdapterKind`)."""

    def attach(
        self,
        part: str,
        module: nn.Module,
        targets: Sequence[str],
        settings: Lokr,
        *,
        seed: int,
        start: Sequence[AdapterLayer] = (),
        where: str = "",
    ) -> LokrAdapter:
        """Put a LoKr on the target layers of a part; those of `start` have the factors they have there."""
        module.requires_grad_(False)
        found, deltas = {layer.path: layer for layer in start}, {}
        with seeded_global_rng(seed, CPU):
            for path in targets:
                layer = _layer_at(module, path)
                deltas[path] = _delta(layer, part, path, settings, found.get(path))
                if path in found:
                    _require_fit(deltas[path], layer, found[path], where)
        adapter = _attached(part, module, deltas)
        adapter.load(start)
        if not settings.decompose:
            return adapter
        magnitudes = magnitudes_in(module, start, where)
        return replace(adapter, decompositions=_decomposed(module, deltas, magnitudes, settings))

    def attach_stored(self, part: str, module: nn.Module, layers: Sequence[AdapterLayer], *, where: str) -> LokrAdapter:
        """Put the LoKr of a file on the layers that the file has, with the factors that it has."""
        module.requires_grad_(False)
        deltas = {}
        for stored in layers:
            layer = _layer_at(module, stored.path)
            factors = {name: factor.float().to(layer.weight.device) for name, factor in stored.factors.items()}
            alpha = rank_in(factors) or 1.0 if stored.alpha is None else stored.alpha
            delta = KroneckerDelta(layer.weight.shape[2:], factors, alpha=alpha, dropout=0.0, vec_trick=True)
            _require_fit(delta, layer, stored, where)
            deltas[stored.path] = delta
        return _attached(part, module, deltas)

    def write(
        self, layers: Iterable[AdapterLayer], form: FileForm, naming: LoraNaming
    ) -> tuple[Mapping[str, Writable], dict[str, str]]:
        """Return the tensors of the kohya form, the only one there is."""
        return to_kohya(layers, naming.kohya_name), {}


LOKR_KIND = LokrKind()


def _attached(part: str, module: nn.Module, deltas: Mapping[str, KroneckerDelta]) -> LokrAdapter:
    for path, delta in deltas.items():
        layer = _layer_at(module, path)
        layer.add_module(_NAME, delta)
        layer.register_forward_hook(delta.add_to)
    return LokrAdapter(part, module, deltas)


def _delta(layer: _Layer, part: str, path: str, settings: Lokr, stored: AdapterLayer | None) -> KroneckerDelta:
    """Return what LoKr adds to a layer, before it is on it: fresh, or in the shapes that a file has."""
    weight = tuple(layer.weight.shape)
    if stored is not None:
        names = [name for name in stored.factors if name != DORA_SCALE]
        factors = {name: torch.empty(stored.factors[name].shape) for name in names}
    else:
        shapes = factor_shapes(at_layer(settings, part, path, weight), weight)
        factors = {name: _begun(name, torch.empty(shape)) for name, shape in shapes.items()}
    # Two full matrices have no rank and a strength of 1: LyCORIS writes an alpha of the rank for them.
    rank, ranks, is_conv = rank_in(factors), ranks_of(settings), is_convolution(weight)
    full = float(ranks.of(part, path, is_convolution=is_conv)[0])
    return KroneckerDelta(
        weight[2:],
        {name: factor.to(layer.weight.device, dtype_of(settings.dtype)) for name, factor in factors.items()},
        alpha=ranks.alpha_at(part, path, rank, is_convolution=is_conv) if rank else full,
        dropout=settings.dropout,
        vec_trick=settings.vec_trick,
        rank_dropout=settings.rank_dropout,
        module_dropout=attach_module_dropout(layer, settings.module_dropout),
    )


def _decomposed(
    module: nn.Module, deltas: Mapping[str, KroneckerDelta], magnitudes: Mapping[str, torch.Tensor], settings: Lokr
) -> dict[str, Decomposition]:
    """Put DoRA's magnitudes on the layers of a LoKr, those of a file where it has them."""
    found = {}
    for path, delta in deltas.items():
        layer = _layer_at(module, path)
        found[path] = attach_decomposition(
            layer,
            layer,
            delta.change,
            on_outputs=settings.decompose_output_axis,
            has_eps=settings.decompose_norm_eps,
            dropout=delta.module_dropout,
            magnitudes=magnitudes.get(path),
        )
    return found


def _layer_at(module: nn.Module, path: str) -> _Layer:
    layer = module.get_submodule(path)
    if not isinstance(layer, _Layer) or getattr(layer, "groups", 1) != 1:
        raise DarkroomError(
            f"LoKr cannot be trained on {path}, a {type(layer).__name__}.", advice="Choose other layers."
        )
    return layer


def _begun(name: str, factor: torch.Tensor) -> torch.Tensor:
    """Return a fresh factor as LyCORIS begins it: the last one of w2 zero, so that the model is what it was."""
    if name in ("lokr_w2", "lokr_w2_b"):
        return nn.init.zeros_(factor)
    return nn.init.kaiming_uniform_(factor, a=math.sqrt(5))


def _require_fit(delta: KroneckerDelta, layer: _Layer, stored: AdapterLayer, where: str) -> None:
    """Raise DarkroomError if the factors of a file do not fit each other or the layer."""
    with torch.no_grad(), contextlib.suppress(RuntimeError):  # which is what factors that do not fit each other raise
        if delta.weight().shape == layer.weight.shape:
            return
    raise does_not_fit(stored, tuple(layer.weight.shape), where)
