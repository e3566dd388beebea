"""The packed weight of one layer, with a low-rank product beside it if there is one; a cache keeps such weights."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass

import torch

from modules.data.cache.store import BrokenEntryError, EntryStore
from modules.quantization.low_rank import low_rank_product
from modules.quantization.packing import Packing
from modules.quantization.spec import QuantizedFormat, Residual
from modules.system.factories import load_factory

logger = logging.getLogger("darkroom.quantization")

_VERSION = 1  # of the entries of a cache


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A packed weight (out, in) and its scales; `down` (rank, in) and `up` (out, rank) are added to it, if any."""

    packing: Packing
    packed: torch.Tensor
    scales: torch.Tensor
    down: torch.Tensor | None = None
    up: torch.Tensor | None = None


@torch.no_grad()
def packed_weight(
    weight: torch.Tensor, form: QuantizedFormat, residual: Residual | None = None, cache: EntryStore | None = None
) -> PackedWeight:
    """Return a weight (out, in) packed in a format. With a `residual`, it is read from the cache or written there."""
    packing: Packing = load_factory(form.packing)
    if residual is None:
        return PackedWeight(packing, *packing.pack(weight))
    key = _key(weight, form, residual) if cache is not None else ""
    if cache is not None and cache.has(key):
        try:
            found = {name: tensor.to(weight.device) for name, tensor in cache.read(key).items()}
            return PackedWeight(packing, **{name: tensor.clone() for name, tensor in found.items()})
        except (BrokenEntryError, TypeError) as error:
            logger.warning("A damaged entry of the quantization cache is computed again: %s", error)
    down, up = low_rank_product(weight, residual)
    packed, scales = packing.pack(weight.float() - up.float() @ down.float())
    if cache is not None:
        try:
            cache.write(key, {"packed": packed, "scales": scales, "down": down, "up": up})
        except OSError as error:
            logger.warning("The quantization cache cannot be written: %s", error)
    return PackedWeight(packing, packed, scales, down, up)


def _key(weight: torch.Tensor, form: QuantizedFormat, residual: Residual) -> str:
    """Return the key of a weight's entry: its content, and all that decides what it is packed to."""
    facts = (_VERSION, form.packing, residual.dtype, residual.rank, tuple(weight.shape), str(weight.dtype))
    digest = hashlib.sha256(repr(facts).encode())
    digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
