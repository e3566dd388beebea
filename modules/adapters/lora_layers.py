"""LoRA (Hu et al. 2021, eq. 3): `h = W x + (alpha / rank) B A x`, through peft's layers.

peft's layers are what diffusers itself loads a LoRA into, so what is trained here runs the same code there.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import nn

from modules.adapters.changes import plain_lora
from modules.adapters.lora import Lora
from modules.adapters.spec import FileForm
from modules.families.parts.circular_padding import pad_as
from modules.families.spec import LoraNaming
from modules.formats.adapter_layers import AdapterLayer, lora_layer
from modules.formats.adapter_names import DOWN, UP
from modules.formats.lora_files import to_kohya, to_peft
from modules.formats.safetensors_io import Writable
from modules.system.devices import CPU
from modules.system.dtypes import dtype_of
from modules.system.errors import DarkroomError
from modules.system.global_rng import seeded_global_rng

ADAPTER = "default"


@dataclass(frozen=True, slots=True)
class LoraShape:
    """What decides a LoRA's layers."""

    rank: int
    alpha: float
    dropout: float
    dtype: torch.dtype


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
        return {f"{self.part}.{n}": p for n, p in self.module.named_parameters() if f".{ADAPTER}." in n}

    def stored_layers(self, values: Mapping[str, torch.Tensor]) -> list[AdapterLayer]:
        """Return A (down) and B (up) of every layer out of `values`, which are named as `parameters` names them."""
        named = ((path, *self._names(path), layer.lora_alpha[ADAPTER]) for path, layer in self.layers())
        return [lora_layer(self.part, path, values[down], values[up], alpha) for path, down, up, alpha in named]

    def load(self, layers: Sequence[AdapterLayer]) -> None:
        """Take the weights of layers, all of which the adapter has, in the shapes that it has.

        The strength stays what it was: where alpha by rank is another, the up matrix is scaled.
        """
        parameters, own = self.parameters(), dict(self.layers())
        with torch.no_grad():
            for layer in layers:
                down, up = (parameters[n] for n in self._names(layer.path))
                down.copy_(layer.factors[DOWN])
                up.copy_(layer.factors[UP].float() * (layer.scale / own[layer.path].scaling[ADAPTER]))

    def _names(self, path: str) -> tuple[str, str]:
        """Return the full names of A and B of a layer."""
        layer = f"{self.part}.{path}"
        return f"{layer}.lora_A.{ADAPTER}.weight", f"{layer}.lora_B.{ADAPTER}.weight"

    @contextlib.contextmanager
    def disabled(self) -> Iterator[None]:
        """Be without the adapter for a while, for a reference prediction; it is back also after an exception.

        No gradient is recorded inside: a backward pass through a disabled adapter would give it none, silently.
        """
        layers = [layer for _, layer in self.layers()]
        were_trained = {p: p.requires_grad for p in self.parameters().values()}
        with torch.no_grad():
            for layer in layers:
                layer.enable_adapters(False)
            try:
                yield
            finally:
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
    own: Mapping[str, tuple[int, float]] | None = None,
) -> LoraAdapter:
    """Put a LoRA beside the target layers of a frozen module, in place, and return it.

    A is drawn as in Hu et al. (Kaiming uniform) from `seed` alone, B is zero: at first the model is what it was. `own`
    contains the rank and the alpha of the layers that do not have those of `shape`, by their names.
    """
    own = own or {}
    config = LoraConfig(
        r=shape.rank,
        lora_alpha=shape.alpha,  # annotated int, but only ever divided by the rank
        lora_dropout=shape.dropout,
        target_modules=targets,
        bias="none",
        rank_pattern=_pattern({path: rank for path, (rank, _) in own.items() if rank != shape.rank}),
        alpha_pattern=_pattern({path: alpha for path, (_, alpha) in own.items() if alpha != shape.alpha}),
    )
    module.requires_grad_(False)
    with seeded_global_rng(seed, CPU):
        inject_adapter_in_model(config, module, adapter_name=ADAPTER)
    adapter = LoraAdapter(part, module, shape)
    for _, layer in adapter.layers():
        pad_as(layer.get_base_layer(), layer.lora_A[ADAPTER])
    for parameter in adapter.parameters().values():
        parameter.data = parameter.data.to(shape.dtype)
        parameter.requires_grad_(True)
    return adapter


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
        """Put a LoRA on the target layers of a part; those of `start` have the rank and the weights they have there."""
        shape = LoraShape(settings.rank, settings.alpha, settings.dropout, dtype_of(settings.dtype))
        plain = _plain(module, start, where)
        strength = settings.alpha / settings.rank
        own = {layer.path: (layer.rank, strength * layer.rank) for layer in plain if layer.rank != settings.rank}
        adapter = attach_lora(part, module, list(targets), shape, seed=seed, own=own)
        adapter.load(plain)
        return adapter

    def attach_stored(self, part: str, module: nn.Module, layers: Sequence[AdapterLayer], *, where: str) -> LoraAdapter:
        """Put the LoRA of a file on the layers that the file has, each with its rank and alpha."""
        plain = _plain(module, layers, where)
        shape = LoraShape(plain[0].rank, plain[0].lora_alpha, 0.0, torch.float32)
        own = {layer.path: (layer.rank, layer.lora_alpha) for layer in plain}
        adapter = attach_lora(part, module, [layer.path for layer in plain], shape, seed=0, own=own)
        adapter.load(plain)
        return adapter

    def write(
        self, layers: Iterable[AdapterLayer], form: FileForm, naming: LoraNaming
    ) -> tuple[Mapping[str, Writable], dict[str, str]]:
        """Return the tensors of the kohya or the PEFT form, and the metadata that the form needs."""
        if form == "kohya":
            return to_kohya(layers, naming.kohya_name), {}
        return to_peft(layers, naming.peft_name, folds_alpha=True)


def _plain(module: nn.Module, layers: Sequence[AdapterLayer], where: str) -> list[AdapterLayer]:
    """Return layers of a file with the shapes of peft's layers, a Tucker core in down."""
    return [_plain_layer(module, layer, where) for layer in layers]


def _plain_layer(module: nn.Module, layer: AdapterLayer, where: str) -> AdapterLayer:
    own = module.get_submodule(layer.path)
    if not isinstance(own, nn.Linear | nn.Conv2d):
        raise DarkroomError(
            f"{where} has a LoRA on {layer.part}.{layer.path}, a {type(own).__name__}, which cannot have one.",
            advice="Choose other layers, on the LoRA / Adapter page: those that are not trained are kept as they are.",
        )
    down, up = plain_lora(layer, tuple(own.weight.shape), where=where)
    return lora_layer(layer.part, layer.path, down, up, layer.alpha)


LORA_KIND = LoraKind()
