"""LoRA (Hu et al. 2021, eq. 3): `h = W x + (alpha / rank) B A x`, through peft's layers.

peft's layers are what diffusers itself loads a LoRA into, so what is trained here runs the same code there.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import nn

from modules.adapters.changes import plain_lora, weight_shape
from modules.adapters.decomposition import NAME as DORA
from modules.adapters.decomposition import Decomposition, attach_decomposition, magnitudes_in
from modules.adapters.delta_adapter import layer_input, strength_ratio
from modules.adapters.layer_dropout import attach_module_dropout
from modules.adapters.lora import Lora
from modules.adapters.lora_forward import ADAPTER, fuse_forwards
from modules.adapters.lora_product import Product, begin_as_principal_part, initial_product
from modules.adapters.protocol import LowRankProduct
from modules.adapters.ranks import is_convolution, ranks_of
from modules.families.lora_naming import LoraNaming
from modules.families.parts.circular_padding import pad_as
from modules.formats.adapter_forms import FileForm
from modules.formats.adapter_layers import AdapterLayer, lora_layer
from modules.formats.adapter_names import DOWN, UP
from modules.formats.adapter_types import DORA_SCALE
from modules.formats.lora_files import to_kohya, to_peft, with_one_alpha
from modules.formats.safetensors_io import Writable
from modules.memory.pass_copies import PassCopies
from modules.quantization.linear import weights_without_values
from modules.system.devices import CPU, dtype_of, seeded_global_rng
from modules.system.errors import DarkroomError


@dataclass(frozen=True, slots=True)
class LoraShape:
    """The rank, alpha, dropouts and dtype of a LoRA's layers."""

    rank: int
    alpha: float
    dropout: float
    dtype: torch.dtype
    rank_dropout: float = 0.0
    module_dropout: float = 0.0


@dataclass(frozen=True, eq=False)
class LoraAdapter:
    """The LoRA layers of one part: trainable, while the part itself is frozen."""

    part: str
    module: nn.Module
    shape: LoraShape

    def layers(self) -> Iterator[tuple[str, Any]]:
        """Yield the dotted name and the LoRA layer of every layer that has one."""
        for name, layer in self.module.named_modules():
            if isinstance(layer, LoraLayer):
                yield name, layer

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the trainable parameters by the part's name and their dotted name in it."""
        markers = (f".{ADAPTER}.", f".{DORA}.")
        return {f"{self.part}.{n}": p for n, p in self.module.named_parameters() if any(name in n for name in markers)}

    def fixed(self) -> dict[str, torch.Tensor]:
        """Return the initial product of each layer, which is subtracted, by full name; empty without PiSSA."""
        products = {path: initial_product(layer) for path, layer in self.layers()}
        return {
            f"{self.part}.{path}.initial_product.{name}": factor
            for path, product in products.items()
            if product is not None
            for name, factor in zip(("down", "up"), product.factors, strict=True)
        }

    def stored_layers(self, values: Mapping[str, torch.Tensor]) -> list[AdapterLayer]:
        """Return A (down) and B (up) of every layer out of `values`, which are named as `parameters` names them.

        The initial product of a layer (`lora_product`) is subtracted by additional ranks. All layers get the same
        alpha, whatever their strength: diffusers ignores some alphas that differ from the most common one.
        """
        return with_one_alpha([self._stored_weight(path, layer, values) for path, layer in self.layers()])

    def _stored_weight(self, path: str, layer: Any, values: Mapping[str, torch.Tensor]) -> AdapterLayer:
        down_name, up_name = self._names(path)
        down, up, alpha = values[down_name], values[up_name], layer.lora_alpha[ADAPTER]
        if (initial := initial_product(layer)) is not None:
            first = [factor.to(down) for factor in initial.factors]
            down, up, alpha = torch.cat([down, first[0]]), torch.cat([up, -first[1]], dim=1), 2 * alpha
        stored = lora_layer(self.part, path, down, up, alpha)
        if _decomposition(layer) is None:
            return stored
        return replace(stored, factors={**stored.factors, DORA_SCALE: values[self._magnitudes(path)]})

    def products(self) -> list[LowRankProduct]:
        """Return the product of each layer (`LowRankAdapter`)."""
        return [LowRankProduct(*self._names(path), layer.scaling[ADAPTER]) for path, layer in self.layers()]

    def load(self, layers: Sequence[AdapterLayer]) -> None:
        """Copy the weights of layers, all of which the adapter has with the same shapes, in place.

        The strength does not change: if alpha by rank differs, the up matrix is scaled.
        """
        parameters, lora_layers = self.parameters(), dict(self.layers())
        with torch.no_grad():
            for layer in layers:
                down, up = (parameters[n] for n in self._names(layer.path))
                down.copy_(layer.factors[DOWN])
                up.copy_(
                    layer.factors[UP].float() * strength_ratio(layer.scale, lora_layers[layer.path].scaling[ADAPTER])
                )

    def decompose(self, magnitudes: Mapping[str, torch.Tensor], *, on_outputs: bool, has_eps: bool) -> None:
        """Also train DoRA's magnitudes on all layers. `magnitudes` of a file are given by layer.

        The other layers begin with the norms of their presently changed weights, so that the function is the same.
        """
        for path, layer in list(self.layers()):
            attach_decomposition(
                layer,
                layer.get_base_layer(),
                partial(_change, layer),
                on_outputs=on_outputs,
                has_eps=has_eps,
                dropout=layer.lora_variant[ADAPTER].module_dropout if ADAPTER in layer.lora_variant else None,
                magnitudes=magnitudes.get(path),
            )

    def compute_in_input_dtype(self, dtype: torch.dtype) -> None:
        """Compute each layer in the dtype of its input, in few operations, for a run without autocast.

        `dtype` is the inputs' dtype: a pass of the part begins with copies of all factors in it. Only for adapters
        whose settings `computes_in_input_dtype` (`modules/adapters/lora.py`) accepts.
        """
        layers = dict(self.layers())
        fuse_forwards(self.module, layers)
        if self.shape.dtype != dtype:
            factors = {layer: (layer.lora_A[ADAPTER], layer.lora_B[ADAPTER]) for layer in layers.values()}
            first = next(iter(factors))
            PassCopies(self.module, factors, dtype, is_used=lambda: not first.disable_adapters)

    def _magnitudes(self, path: str) -> str:
        """Return the full name of DoRA's magnitudes of a layer."""
        return f"{self.part}.{path}.{DORA}.magnitudes"

    def _names(self, path: str) -> tuple[str, str]:
        """Return the full names of A and B of a layer."""
        layer = f"{self.part}.{path}"
        return f"{layer}.lora_A.{ADAPTER}.weight", f"{layer}.lora_B.{ADAPTER}.weight"

    def changes_nothing(self) -> bool:
        """Return whether B is zero in every layer, and no layer has magnitudes, whose use rounds its weights."""
        parameters = self.parameters()
        return all(
            _decomposition(layer) is None and not bool(parameters[self._names(path)[1]].any())
            for path, layer in self.layers()
        )

    @contextlib.contextmanager
    def disabled(self) -> Iterator[None]:
        """Disable the adapter inside the context, for a reference prediction; enable it again even after an exception.

        No gradient is recorded inside: a backward pass through a disabled adapter would give it none, silently.
        """
        layers = [layer for _, layer in self.layers()]
        decompositions = [decomposition for layer in layers if (decomposition := _decomposition(layer)) is not None]
        were_trained = {p: p.requires_grad for p in self.parameters().values()}
        with torch.no_grad():
            for layer in layers:
                layer.enable_adapters(False)
            for decomposition in decompositions:
                decomposition.is_enabled = False
            try:
                yield
            finally:
                for decomposition in decompositions:
                    decomposition.is_enabled = True
                for layer in layers:
                    layer.enable_adapters(True)
                for parameter, was_trained in were_trained.items():  # peft would train a frozen adapter again
                    parameter.requires_grad_(was_trained)


def attach_lora(
    part: str,
    module: nn.Module,
    targets: list[str],
    shape: LoraShape,
    *,
    seed: int,
    layer_ranks: Mapping[str, tuple[int, float]] | None = None,
    principal: Collection[str] = (),
) -> LoraAdapter:
    """Put a LoRA on the target layers of a frozen module, in place, and return it.

    A is drawn as in Hu et al. (Kaiming uniform) from `seed` alone and B is zero, so that the model is unchanged at
    first. `layer_ranks` contains the rank and the alpha of layers whose values differ from `shape`, by their names. The
    layers in `principal` begin as the principal part of their weight (PiSSA).
    """
    layer_ranks = layer_ranks or {}
    config = LoraConfig(
        r=shape.rank,
        lora_alpha=shape.alpha,  # annotated int, but only ever divided by the rank
        lora_dropout=shape.dropout,
        target_modules=targets,
        bias="none",
        rank_pattern=_pattern({path: rank for path, (rank, _) in layer_ranks.items() if rank != shape.rank}),
        alpha_pattern=_pattern({path: alpha for path, (_, alpha) in layer_ranks.items() if alpha != shape.alpha}),
    )
    module.requires_grad_(False)
    with seeded_global_rng(seed, CPU):
        with weights_without_values():
            inject_adapter_in_model(config, module, adapter_name=ADAPTER)
        adapter = LoraAdapter(part, module, shape)
        for parameter in adapter.parameters().values():
            parameter.data = parameter.data.to(shape.dtype)
            parameter.requires_grad_(True)
        for path, layer in adapter.layers():
            pad_as(layer.get_base_layer(), layer.lora_A[ADAPTER])
            if path in principal:
                begin_as_principal_part(layer, ADAPTER)
    for path, layer in list(adapter.layers()):
        keeps_cast = path in principal or not isinstance(layer.lora_dropout[ADAPTER], nn.Identity)
        layer._cast_input_dtype = partial(layer_input, keeps_cast=keeps_cast)  # in place of peft's own
        if path in principal or shape.rank_dropout or shape.module_dropout:
            dropout = attach_module_dropout(layer, shape.module_dropout)
            layer.lora_variant[ADAPTER] = Product(shape.rank_dropout, dropout)
    return adapter


def _change(layer: Any) -> torch.Tensor:
    """Return the change of its layer's weight by a LoRA, in float32."""
    down, up = layer.lora_A[ADAPTER].weight.float(), layer.lora_B[ADAPTER].weight.float()
    product = up.flatten(1) @ down.flatten(1)
    if (initial := initial_product(layer)) is not None:
        first_down, first_up = (factor.float().flatten(1) for factor in initial.factors)
        product = product - first_up @ first_down
    change: torch.Tensor = product.reshape(weight_shape(layer.get_base_layer())) * layer.scaling[ADAPTER]
    return change


def _decomposition(layer: Any) -> Decomposition | None:
    decomposition = getattr(layer, DORA, None)
    return decomposition if isinstance(decomposition, Decomposition) else None


def _pattern(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by layer as peft's `rank_pattern` takes them: one regular expression for all layers of a value.

    peft tries every expression on every layer, and matches the end of a name; "^" makes it the whole name.
    """
    paths: dict[Any, list[str]] = {}
    for path, value in values.items():
        paths.setdefault(value, []).append(re.escape(path))
    return {f"^(?:{'|'.join(of_value)})": value for value, of_value in paths.items()}


class LoraKind:
    """LoRA, as the program handles any adapter (`AdapterKind`)."""

    def attach(
        self,
        part: str,
        module: nn.Module,
        targets: Sequence[str],
        settings: Lora,
        *,
        seed: int,
        start: Sequence[AdapterLayer] = (),
        where: str = "",
    ) -> LoraAdapter:
        """Put a LoRA on the target layers of a part; the layers of `start` get its ranks and weights."""
        shape = LoraShape(
            settings.rank,
            settings.alpha,
            settings.dropout,
            dtype_of(settings.dtype),
            settings.rank_dropout,
            settings.module_dropout,
        )
        plain = _plain(module, start, where)
        layer_ranks = _ranks_by_layer(part, module, targets, settings, {layer.path: layer.rank for layer in plain})
        fresh = frozenset(targets) - {layer.path for layer in plain} if settings.init == "pissa" else ()
        adapter = attach_lora(part, module, list(targets), shape, seed=seed, layer_ranks=layer_ranks, principal=fresh)
        adapter.load(plain)
        if settings.decompose:
            magnitudes = magnitudes_in(module, start, where)
            axis, has_eps = settings.decompose_output_axis, settings.decompose_norm_eps
            adapter.decompose(magnitudes, on_outputs=axis, has_eps=has_eps)
        return adapter

    def write(
        self, layers: Iterable[AdapterLayer], form: FileForm, naming: LoraNaming
    ) -> tuple[Mapping[str, Writable], dict[str, str]]:
        """Return the tensors of the kohya or the PEFT form, and the metadata that the form needs."""
        if form == "kohya":
            return to_kohya(layers, naming.kohya_name), {}
        return to_peft(layers, naming.peft_name, folds_alpha=True)


def _ranks_by_layer(
    part: str, module: nn.Module, targets: Sequence[str], settings: Lora, ranks_in_file: Mapping[str, int]
) -> dict[str, tuple[int, float]]:
    """Return the rank and the alpha of the target layers; `ranks_in_file` are the ranks of the layers in a file."""
    ranks, by_layer = ranks_of(settings), {}
    for path in targets:
        is_conv = is_convolution(weight_shape(module.get_submodule(path)))
        rank, alpha = ranks.of(part, path, is_convolution=is_conv)
        if (other := ranks_in_file.get(path, rank)) != rank:
            rank, alpha = other, ranks.alpha_at(part, path, other, is_convolution=is_conv)
        by_layer[path] = (rank, alpha)
    return by_layer


def _plain(module: nn.Module, layers: Sequence[AdapterLayer], where: str) -> list[AdapterLayer]:
    """Return layers of a file with the shapes of peft's layers, any Tucker core multiplied into down."""
    return [_plain_layer(module, layer, where) for layer in layers]


def _plain_layer(module: nn.Module, layer: AdapterLayer, where: str) -> AdapterLayer:
    base = module.get_submodule(layer.path)
    if not isinstance(base, nn.Linear | nn.Conv2d):
        raise DarkroomError(
            f"{where} has a LoRA on {layer.part}.{layer.path}, a layer of a kind that cannot have one.",
            advice="Choose other layers, on the Training page: those that are not trained are kept as they are.",
        )
    down, up = plain_lora(layer, weight_shape(base), where=where)
    return lora_layer(layer.part, layer.path, down, up, layer.alpha)


LORA_KIND = LoraKind()
