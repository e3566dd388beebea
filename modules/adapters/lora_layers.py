"""LoRA (Hu et al. 2021, eq. 3): `h = W x + (alpha / rank) B A x`, through peft's layers.

peft's layers are what diffusers itself loads a LoRA into, so what is trained here runs the same code there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import nn

from modules.adapters.lora import Lora
from modules.adapters.reading import layers_of
from modules.adapters.spec import FileForm
from modules.families.spec import LoraNaming
from modules.formats.adapter_layers import AdapterLayer, lora_layer
from modules.formats.adapter_names import DOWN, MID, UP
from modules.formats.lora_files import folded_down, to_kohya, to_peft
from modules.formats.safetensors_io import Writable
from modules.system.devices import CPU
from modules.system.dtypes import dtype_of
from modules.system.errors import DarkroomError
from modules.system.global_rng import seeded_global_rng

ADAPTER = "default"


@dataclass(frozen=True, slots=True)
class LoraShape:
    """What decides a LoRA's layers; `of_layers` are rank and alpha of those that have others, by path."""

    rank: int
    alpha: float
    dropout: float
    dtype: torch.dtype
    of_layers: Mapping[str, tuple[int, float]] = field(default_factory=dict)


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
        named = ((path, *self._names(path), self._rank_and_alpha(path)[1]) for path, _ in self.layers())
        return [lora_layer(self.part, path, values[down], values[up], alpha) for path, down, up, alpha in named]

    def load(self, layers: Sequence[AdapterLayer], *, where: str) -> None:
        """Take the weights of layers of a file named `where`; layers that the file does not have stay as they are.

        The strength stays what it was: where the alpha is another, the up matrix is scaled. A layer of lower rank takes
        the first rows; the others add nothing until they are trained. Raises DarkroomError where the adapter lacks a
        layer or has a lower rank.
        """
        parameters = self.parameters()
        with torch.no_grad():
            for layer in layers:
                names = self._names(layer.path)
                if names[0] not in parameters:
                    raise DarkroomError(
                        f"{where} has a LoRA on {self.part}.{layer.path}, which this run leaves out.",
                        advice="Choose all layers, on the LoRA / Adapter page.",
                    )
                rank, alpha = self._rank_and_alpha(layer.path)
                if layer.rank > rank:
                    raise DarkroomError(
                        f"{where} has the rank {layer.rank} at {self.part}.{layer.path}, this run's LoRA has {rank}.",
                        advice=f"Set the rank to {layer.rank}.",
                    )
                down, up = (parameters[n] for n in names)
                first, last = down[: layer.rank], up[:, : layer.rank]
                up.zero_()
                first.copy_(_shaped_as(first, layer.factors[DOWN], layer, where))
                strength = layer.scale / (alpha / rank)
                last.copy_(_shaped_as(last, layer.factors[UP], layer, where).float() * strength)

    def _rank_and_alpha(self, path: str) -> tuple[int, float]:
        return self.shape.of_layers.get(path, (self.shape.rank, self.shape.alpha))

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
        with torch.no_grad():
            for layer in layers:
                layer.enable_adapters(False)
            try:
                yield
            finally:
                for layer in layers:
                    layer.enable_adapters(True)


def attach_lora(part: str, module: nn.Module, targets: list[str], shape: LoraShape, *, seed: int) -> LoraAdapter:
    """Put a LoRA beside the target layers of a frozen module, in place, and return it.

    A is drawn as in Hu et al. (Kaiming uniform) from `seed` alone, B is zero: at first the model is what it was.
    """
    groups: dict[tuple[int, float], list[str]] = {}
    for path in targets:
        groups.setdefault(shape.of_layers.get(path, (shape.rank, shape.alpha)), []).append(path)
    module.requires_grad_(False)
    with seeded_global_rng(seed, CPU):
        # One injection per rank and alpha: peft's own patterns are searched with a regular expression for every layer.
        for (rank, alpha), paths in groups.items():
            config = LoraConfig(
                r=rank,
                lora_alpha=alpha,  # annotated int, but only ever divided by the rank
                lora_dropout=shape.dropout,
                target_modules=paths,
                bias="none",
            )
            inject_adapter_in_model(config, module, adapter_name=ADAPTER)
    adapter = LoraAdapter(part, module, shape)
    for parameter in adapter.parameters().values():
        parameter.data = parameter.data.to(shape.dtype)
        parameter.requires_grad_(True)
    return adapter


def _shaped_as(wanted: torch.Tensor, stored: torch.Tensor, layer: AdapterLayer, where: str) -> torch.Tensor:
    """Return a matrix of a file in the shape of the model's; some files write 1x1 convolutions as linear layers.

    Raises DarkroomError where the file is for a layer of another size.
    """
    plain = [tuple(n for n in t.shape if n != 1) for t in (wanted, stored)]
    if plain[0] != plain[1]:
        raise DarkroomError(
            f"{where} does not fit this model: {tuple(stored.shape)} instead of {tuple(wanted.shape)} at "
            f"{layer.part}.{layer.path}.",
            advice="Choose a LoRA that was trained on a model of this kind.",
        )
    return stored.reshape(wanted.shape)


class LoraKind:
    """LoRA, as the program handles any adapter (`AdapterKind`)."""

    def attach(self, part: str, module: nn.Module, targets: Sequence[str], settings: Lora, *, seed: int) -> LoraAdapter:
        """Put a fresh LoRA on the target layers of a part."""
        shape = LoraShape(settings.rank, settings.alpha, settings.dropout, dtype_of(settings.dtype))
        return attach_lora(part, module, list(targets), shape, seed=seed)

    def attach_stored(self, part: str, module: nn.Module, layers: Sequence[AdapterLayer], *, where: str) -> LoraAdapter:
        """Put the LoRA of a file on the layers that the file has, each with its own rank and alpha."""
        rank, alpha = layers[0].rank, layers[0].lora_alpha
        others = {x.path: (x.rank, x.lora_alpha) for x in layers if (x.rank, x.lora_alpha) != (rank, alpha)}
        shape = LoraShape(rank, alpha, 0.0, torch.float32, others)
        adapter = attach_lora(part, module, [layer.path for layer in layers], shape, seed=0)
        adapter.load(layers, where=where)
        return adapter

    def read(
        self, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str], naming: LoraNaming
    ) -> list[AdapterLayer]:
        """Read every form; the middle of Tucker's form is folded into the down matrix."""
        layers = layers_of(tensors, metadata, naming, label="LoRA", factors=(DOWN, UP, MID))
        return [_plain(layer) for layer in layers]

    def write(
        self, layers: Iterable[AdapterLayer], form: FileForm, naming: LoraNaming
    ) -> tuple[Mapping[str, Writable], dict[str, str]]:
        """Return the tensors of the kohya or the PEFT form, and the metadata that the form needs."""
        if form == "kohya":
            return to_kohya(layers, naming.kohya_name), {}
        return to_peft(layers, naming.peft_name, folds_alpha=True)


def _plain(layer: AdapterLayer) -> AdapterLayer:
    """Return a layer with its two matrices alone. Raises DarkroomError where they are incomplete or do not match."""
    where = f"{layer.part}.{layer.path}"
    for name in (DOWN, UP):
        if name not in layer.factors:
            raise DarkroomError(f"The LoRA is incomplete: {name} of {where} is missing.", advice="Download it again.")
    down, up = layer.factors[DOWN], layer.factors[UP]
    if down.ndim < 2 or up.ndim < 2 or up.shape[1] != down.shape[0]:
        raise DarkroomError(
            f"The LoRA is damaged: down {tuple(down.shape)} and up {tuple(up.shape)} of {where} do not match.",
            advice="Download it again.",
        )
    return lora_layer(layer.part, layer.path, folded_down(layer.factors), up, layer.alpha)


LORA_KIND = LoraKind()
