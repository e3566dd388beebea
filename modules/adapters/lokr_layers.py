"""LoKr's layers: `h = W x + scale * kron(w1, w2) x`, added by a hook on each layer.

peft has LoKr, too, but builds the whole product in each pass (as large as all the layers' weights), has no full matrix
and no dropout of the inputs. The factors, their shapes and how they begin are those of LyCORIS.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from modules.adapters.changes import does_not_fit
from modules.adapters.lokr import Lokr, factor_shapes
from modules.adapters.spec import FileForm
from modules.families.spec import LoraNaming
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.lora_files import to_kohya
from modules.formats.safetensors_io import Writable
from modules.system.devices import CPU
from modules.system.dtypes import dtype_of
from modules.system.errors import DarkroomError
from modules.system.global_rng import seeded_global_rng

_NAME = "lokr"
_Layer = nn.Linear | nn.Conv2d


class KroneckerDelta(nn.Module):
    """What LoKr adds to one linear or convolution layer. `factors` are named as in LyCORIS files."""

    def __init__(
        self,
        kernel: Sequence[int],
        factors: Mapping[str, torch.Tensor],
        *,
        alpha: float,
        dropout: float,
        vec_trick: bool,
    ) -> None:
        super().__init__()
        for name, factor in factors.items():
            self.register_parameter(name, nn.Parameter(factor))
        self.dropout = nn.Dropout(dropout)
        self.scale = _scale(factors, alpha)
        self.alpha = alpha
        self.is_enabled = True
        self._kernel = tuple(kernel)
        self._vec_trick = vec_trick

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

    def forward(self, layer: _Layer, x: torch.Tensor) -> torch.Tensor:
        """Return what is added to the layer's output."""
        x = self.dropout(x.to(next(self.parameters()).dtype))
        if isinstance(layer, nn.Conv2d):
            return self._convolved(layer, x)
        if not self._vec_trick:
            return functional.linear(x, self.weight())
        first, second = self.first(), self.second()
        blocks = functional.linear(x.unflatten(-1, (first.shape[1], second.shape[1])), second)
        return functional.linear(blocks.transpose(-1, -2), first).transpose(-1, -2).flatten(-2)

    def _convolved(self, layer: nn.Conv2d, x_BCHW: torch.Tensor) -> torch.Tensor:
        if not self._vec_trick:
            return functional.conv2d(x_BCHW, self.weight(), None, layer.stride, layer.padding, layer.dilation)
        first, second = self.first(), self.second()
        batch, num_blocks = x_BCHW.shape[0], first.shape[1]
        blocks = x_BCHW.reshape(batch * num_blocks, second.shape[1], *x_BCHW.shape[2:])
        blocks = functional.conv2d(blocks, second, None, layer.stride, layer.padding, layer.dilation)
        height, width = blocks.shape[2:]
        mixed = functional.conv2d(blocks.reshape(batch, num_blocks, -1, width), first[:, :, None, None])
        return mixed.reshape(batch, -1, height, width)

    def add_to(self, layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        """Return a layer's output with this added: its forward hook."""
        assert isinstance(layer, _Layer)
        return output + self(layer, inputs[0]).to(output.dtype) if self.is_enabled else output


@dataclass(frozen=True, eq=False)
class LokrAdapter:
    """LoKr on one part: `deltas` by the dotted names of the layers they are on."""

    part: str
    module: nn.Module
    deltas: Mapping[str, KroneckerDelta]

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the trainable parameters by the part's name and their dotted name in it."""
        return {
            self._name(path, factor): parameter
            for path, delta in self.deltas.items()
            for factor, parameter in delta.named_parameters()
        }

    def stored_layers(self, values: Mapping[str, torch.Tensor]) -> list[AdapterLayer]:
        """Return the factors of every layer out of `values`, which are named as `parameters` names them."""
        return [
            AdapterLayer(
                self.part, path, {f: values[self._name(path, f)] for f, _ in delta.named_parameters()}, delta.alpha
            )
            for path, delta in self.deltas.items()
        ]

    def load(self, layers: Sequence[AdapterLayer]) -> None:
        """Take the factors of layers, all of which the adapter has, in the shapes that it has.

        The strength stays what it was: where the scale is another, the last factor is multiplied.
        """
        with torch.no_grad():
            for layer in layers:
                delta = self.deltas[layer.path]
                ratio = _scale(layer.factors, layer.alpha) / delta.scale
                for name, factor in delta.named_parameters():
                    is_last = name in ("lokr_w2", "lokr_w2_b")
                    factor.copy_(layer.factors[name].float() * (ratio if is_last else 1.0))

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
        return f"{self.part}.{path}.{_NAME}.{factor}"


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
        dtype, deltas = dtype_of(settings.dtype), {}
        found = {layer.path: layer for layer in start}
        with seeded_global_rng(seed, CPU):
            for path in targets:
                layer = _layer_at(module, path)
                if path in found:
                    factors = {name: torch.empty(factor.shape) for name, factor in found[path].factors.items()}
                else:
                    shapes = factor_shapes(settings, tuple(layer.weight.shape))
                    factors = {name: _begun(name, torch.empty(shape)) for name, shape in shapes.items()}
                # Two full matrices have no rank and a strength of 1: LyCORIS writes an alpha of the rank for them.
                rank = _rank(factors)
                alpha = settings.alpha if rank == settings.rank else settings.alpha / settings.rank * (rank or 0)
                deltas[path] = KroneckerDelta(
                    layer.weight.shape[2:],
                    {name: factor.to(layer.weight.device, dtype) for name, factor in factors.items()},
                    alpha=alpha if rank else float(settings.rank),
                    dropout=settings.dropout,
                    vec_trick=settings.vec_trick,
                )
                if path in found:
                    _require_fit(deltas[path], layer, found[path], where)
        adapter = _attached(part, module, deltas)
        adapter.load(start)
        return adapter

    def attach_stored(self, part: str, module: nn.Module, layers: Sequence[AdapterLayer], *, where: str) -> LokrAdapter:
        """Put the LoKr of a file on the layers that the file has, with the factors that it has."""
        module.requires_grad_(False)
        deltas = {}
        for stored in layers:
            layer = _layer_at(module, stored.path)
            factors = {name: factor.float().to(layer.weight.device) for name, factor in stored.factors.items()}
            alpha = _rank(factors) or 1.0 if stored.alpha is None else stored.alpha
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


def _rank(factors: Mapping[str, torch.Tensor]) -> int | None:
    """Return the rank of the low-rank factors; None where both matrices are full."""
    return next((int(factors[name].shape[0]) for name in ("lokr_w1_b", "lokr_w2_b") if name in factors), None)


def _scale(factors: Mapping[str, torch.Tensor], alpha: float | None) -> float:
    """Return alpha by rank; 1 for two full matrices, and where no alpha is given."""
    rank = _rank(factors)
    return 1.0 if rank is None or alpha is None else alpha / rank


def _require_fit(delta: KroneckerDelta, layer: _Layer, stored: AdapterLayer, where: str) -> None:
    """Raise DarkroomError if the factors of a file do not fit each other or the layer."""
    with torch.no_grad(), contextlib.suppress(RuntimeError):  # which is what factors that do not fit each other raise
        if delta.weight().shape == layer.weight.shape:
            return
    raise does_not_fit(stored, tuple(layer.weight.shape), where)
