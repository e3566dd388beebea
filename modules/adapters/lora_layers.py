"""LoRA (Hu et al. 2021, eq. 3): `h = W x + (alpha / rank) B A x`, through peft's layers.

peft's layers are what diffusers itself loads a LoRA into, so what is trained here runs the same code there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import nn

from modules.adapters.lora import Lora
from modules.adapters.spec import FileForm
from modules.families.spec import LoraNaming
from modules.formats.adapter_layers import AdapterLayer, lora_layer
from modules.formats.adapter_names import DOWN, UP
from modules.formats.lora_files import from_kohya, from_peft, to_kohya, to_peft
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
        named = ((path, *self._names(path)) for path, _ in self.layers())
        return [lora_layer(self.part, path, values[down], values[up], self.shape.alpha) for path, down, up in named]

    def load(self, layers: Sequence[AdapterLayer], *, where: str) -> None:
        """Take the weights of layers of a file named `where`; layers that the file does not have stay as they are.

        The strength stays what it was: where the alpha is another, the up matrix is scaled. Raises DarkroomError where
        the adapter lacks a layer or has another rank.
        """
        parameters, shape = self.parameters(), self.shape
        with torch.no_grad():
            for layer in layers:
                names = self._names(layer.path)
                if names[0] not in parameters:
                    raise DarkroomError(
                        f"{where} has a LoRA on {self.part}.{layer.path}, which this run leaves out.",
                        advice="Choose all layers, on the LoRA / Adapter page.",
                    )
                down, up = (parameters[n] for n in names)
                if down.shape != layer.factors[DOWN].shape or up.shape != layer.factors[UP].shape:
                    raise DarkroomError(
                        f"{where} has the rank {layer.rank} at {self.part}.{layer.path}, this run's LoRA has "
                        f"{shape.rank}.",
                        advice=f"Set the rank to {layer.rank}.",
                    )
                down.copy_(layer.factors[DOWN])
                up.copy_(layer.factors[UP].float() * (layer.scale / (shape.alpha / shape.rank)))

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


def attach_lora(part: str, module: nn.Module, targets: list[str], shape: LoraShape, *, seed: int) -> LoraAdapter:
    """Put a LoRA beside the target layers of a frozen module, in place, and return it.

    A is drawn as in Hu et al. (Kaiming uniform) from `seed` alone, B is zero: at first the model is what it was.
    """
    config = LoraConfig(
        r=shape.rank,
        lora_alpha=shape.alpha,  # annotated int, but only ever divided by the rank
        lora_dropout=shape.dropout,
        target_modules=targets,
        bias="none",
    )
    module.requires_grad_(False)
    with seeded_global_rng(seed, CPU):
        inject_adapter_in_model(config, module, adapter_name=ADAPTER)
    adapter = LoraAdapter(part, module, shape)
    for parameter in adapter.parameters().values():
        parameter.data = parameter.data.to(shape.dtype)
        parameter.requires_grad_(True)
    return adapter


class LoraKind:
    """LoRA, as the program handles any adapter (`AdapterKind`)."""

    def attach(self, part: str, module: nn.Module, targets: Sequence[str], settings: Lora, *, seed: int) -> LoraAdapter:
        """Put a fresh LoRA on the target layers of a part."""
        shape = LoraShape(settings.rank, settings.alpha, settings.dropout, dtype_of(settings.dtype))
        return attach_lora(part, module, list(targets), shape, seed=seed)

    def attach_stored(self, part: str, module: nn.Module, layers: Sequence[AdapterLayer], *, where: str) -> LoraAdapter:
        """Put the LoRA of a file on the layers that the file has, with the rank of the first of them."""
        shape = LoraShape(layers[0].rank, layers[0].lora_alpha, 0.0, torch.float32)
        adapter = attach_lora(part, module, [layer.path for layer in layers], shape, seed=0)
        adapter.load(layers, where=where)
        return adapter

    def read(
        self, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str], naming: LoraNaming
    ) -> list[AdapterLayer]:
        """Read kohya form, with diffusers' or the original names for the UNet, and diffusers/PEFT form."""
        ends = ".lora_down.weight"
        is_kohya = any(name.endswith(ends) and "." not in name.removesuffix(ends) for name in tensors)
        return from_kohya(tensors, naming.kohya_places) if is_kohya else from_peft(tensors, metadata)

    def write(
        self, layers: Iterable[AdapterLayer], form: FileForm, naming: LoraNaming
    ) -> tuple[Mapping[str, Writable], dict[str, str]]:
        """Return the tensors of the kohya or the PEFT form, and the metadata that the form needs."""
        if form == "kohya":
            return to_kohya(layers, naming.kohya_name), {}
        return to_peft(layers, naming.peft_name)


LORA_KIND = LoraKind()
