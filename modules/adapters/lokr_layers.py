"""LoKr's layers: `h = W x + scale * kron(w1, w2) x`, added by a hook on each layer.

peft has LoKr, too, but builds the whole product in each pass (as large as all the layers' weights), has no full matrix
and no dropout of the inputs. The factors, their shapes and how they begin are those of LyCORIS.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from modules.adapters.delta_adapter import AdaptedLayer, DeltaAdapter, LayerDelta, attach_deltas, decomposed, layer_at
from modules.adapters.layer_dropout import attach_module_dropout
from modules.adapters.lokr import LOKR, Lokr, factor_shapes
from modules.adapters.lokr_delta import KroneckerDelta, rank_in
from modules.adapters.ranks import at_layer, is_convolution, ranks_of
from modules.adapters.spec import FileForm
from modules.families.spec import LoraNaming
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_names import DORA_SCALE
from modules.formats.lora_files import to_kohya
from modules.formats.safetensors_io import Writable
from modules.system.devices import CPU
from modules.system.dtypes import dtype_of
from modules.system.global_rng import seeded_global_rng

_NAME = "lokr"


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
    ) -> DeltaAdapter:
        """Put a LoKr on the target layers of a part; those of `start` have the factors they have there."""
        module.requires_grad_(False)
        found, deltas = {layer.path: layer for layer in start}, dict[str, LayerDelta]()
        with seeded_global_rng(seed, CPU):
            for path in targets:
                deltas[path] = _delta(layer_at(module, path, LOKR.label), part, path, settings, found.get(path))
        return decomposed(attach_deltas(part, module, _NAME, deltas, start, where), settings, start, where)

    def attach_stored(
        self, part: str, module: nn.Module, layers: Sequence[AdapterLayer], *, where: str
    ) -> DeltaAdapter:
        """Put the LoKr of a file on the layers that the file has, with the factors that it has."""
        module.requires_grad_(False)
        deltas: dict[str, LayerDelta] = {}
        for stored in layers:
            weight = layer_at(module, stored.path, LOKR.label).weight
            factors = {name: factor.float().to(weight.device) for name, factor in stored.factors.items()}
            alpha = rank_in(factors) or 1.0 if stored.alpha is None else stored.alpha
            deltas[stored.path] = KroneckerDelta(weight.shape[2:], factors, alpha=alpha, dropout=0.0, vec_trick=True)
        return attach_deltas(part, module, _NAME, deltas, layers, where)

    def write(
        self, layers: Iterable[AdapterLayer], form: FileForm, naming: LoraNaming
    ) -> tuple[Mapping[str, Writable], dict[str, str]]:
        """Return the tensors of the kohya form, the only one there is."""
        return to_kohya(layers, naming.kohya_name), {}


LOKR_KIND = LokrKind()


def _delta(layer: AdaptedLayer, part: str, path: str, settings: Lokr, stored: AdapterLayer | None) -> KroneckerDelta:
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


def _begun(name: str, factor: torch.Tensor) -> torch.Tensor:
    """Return a fresh factor as LyCORIS begins it: the last one of w2 zero, so that the model is what it was."""
    if name in ("lokr_w2", "lokr_w2_b"):
        return nn.init.zeros_(factor)
    return nn.init.kaiming_uniform_(factor, a=math.sqrt(5))
