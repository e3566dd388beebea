"""LoKr's layers: `h = W x + scale * kron(w1, w2) x`, added by a hook on each layer.

peft has LoKr, too, but builds the whole product in each pass (as large as all the layers' weights), has no full matrix
and no dropout of the inputs. The factors, their shapes and how they begin are those of LyCORIS.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from modules.adapters.delta_adapter import (
    AdaptedLayer,
    DeltaKind,
)
from modules.adapters.layer_dropout import attach_module_dropout
from modules.adapters.lokr import LOKR, Lokr, factor_shapes
from modules.adapters.lokr_delta import KroneckerDelta, rank_in
from modules.adapters.ranks import at_layer, is_convolution, ranks_of
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_names import DORA_SCALE
from modules.system.devices import dtype_of


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


def _stored(layer: AdaptedLayer, stored: AdapterLayer) -> KroneckerDelta:
    """Return what the LoKr of a file adds to a layer."""
    factors = {name: factor.float().to(layer.weight.device) for name, factor in stored.factors.items()}
    alpha = rank_in(factors) or 1.0 if stored.alpha is None else stored.alpha
    return KroneckerDelta(layer.weight.shape[2:], factors, alpha=alpha, dropout=0.0, vec_trick=True)


LOKR_KIND = DeltaKind(LOKR.label, "lokr", _delta, _stored)
