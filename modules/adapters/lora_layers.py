"""LoRA as a kind of adapter: from its settings or a file to its layers (`lora_adapter`), and to a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from modules.adapters.changes import plain_lora, weight_shape
from modules.adapters.decomposition import magnitudes_in
from modules.adapters.lora import Lora
from modules.adapters.lora_adapter import LoraAdapter, LoraShape, attach_lora
from modules.adapters.ranks import is_convolution, ranks_of
from modules.adapters.spec import FileForm
from modules.families.spec import LoraNaming
from modules.formats.adapter_layers import AdapterLayer, lora_layer
from modules.formats.lora_files import to_kohya, to_peft
from modules.formats.safetensors_io import Writable
from modules.system.devices import dtype_of
from modules.system.errors import DarkroomError


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
        shape = LoraShape(
            settings.rank,
            settings.alpha,
            settings.dropout,
            dtype_of(settings.dtype),
            settings.rank_dropout,
            settings.module_dropout,
        )
        plain = _plain(module, start, where)
        own = _own_ranks(part, module, targets, settings, {layer.path: layer.rank for layer in plain})
        fresh = frozenset(targets) - {layer.path for layer in plain} if settings.init == "pissa" else ()
        adapter = attach_lora(part, module, list(targets), shape, seed=seed, own=own, principal=fresh)
        adapter.load(plain)
        if settings.decompose:
            magnitudes = magnitudes_in(module, start, where)
            axis, has_eps = settings.decompose_output_axis, settings.decompose_norm_eps
            adapter.decompose(magnitudes, on_outputs=axis, has_eps=has_eps)
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


def _own_ranks(
    part: str, module: nn.Module, targets: Sequence[str], settings: Lora, found: Mapping[str, int]
) -> dict[str, tuple[int, float]]:
    """Return the rank and the alpha of the target layers; `found` are the ranks of those that a file has."""
    ranks, own = ranks_of(settings), {}
    for path in targets:
        is_conv = is_convolution(weight_shape(module.get_submodule(path)))
        rank, alpha = ranks.of(part, path, is_convolution=is_conv)
        if (other := found.get(path, rank)) != rank:
            rank, alpha = other, ranks.alpha_at(part, path, other, is_convolution=is_conv)
        own[path] = (rank, alpha)
    return own


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
    down, up = plain_lora(layer, weight_shape(own), where=where)
    return lora_layer(layer.part, layer.path, down, up, layer.alpha)


LORA_KIND = LoraKind()
