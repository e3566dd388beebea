"""Converts a part's tensors into the original layout and back, by its slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from modules.families.parts.single_file.slots import Slot
from modules.formats.lazy_tensors import LazyTensor, concatenate


def to_original(slots: Iterable[Slot], state: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Return a part's tensors under their original names. `state` must contain every slot's tensor."""
    pieces: dict[str, list[LazyTensor]] = {}
    for slot in sorted(slots, key=lambda s: (s.original, s.piece)):
        pieces.setdefault(slot.original, []).append(_outward(slot, state[slot.key]))
    return {name: parts[0] if len(parts) == 1 else concatenate(parts) for name, parts in pieces.items()}


def from_original(slots: Iterable[Slot], tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Return a part's tensors under our names. `tensors` must contain every slot's original, but for identities."""

    def original(slot: Slot) -> LazyTensor:
        return (
            identity_matrix(slot.identity) if slot.identity and slot.original not in tensors else tensors[slot.original]
        )

    return {slot.key: inward(slot, original(slot)) for slot in slots}


def identity_matrix(size: int) -> LazyTensor:
    """Return the identity matrix of a size, float32."""
    return LazyTensor((size, size), torch.float32, lambda: torch.eye(size))


def inward(slot: Slot, original: LazyTensor) -> LazyTensor:
    """Return the tensor of a slot from its original."""
    shape = slot.shape_of(original.shape)
    if len(slot.shares) > 1 and original.shape:
        start, stop = slot.rows(original.shape[0])
        return original.then(shape, lambda t: t[start:stop])
    if slot.transposed:
        return original.then(shape, lambda t: t.t().contiguous())
    if slot.swapped:
        return original.then(shape, _swap_halves)
    return original.then(shape, lambda t: t.reshape(shape)) if slot.conv or slot.joined_rows else original


def _outward(slot: Slot, tensor: LazyTensor) -> LazyTensor:
    shape = tensor.shape
    if slot.transposed:
        return tensor.then(shape[::-1], lambda t: t.t().contiguous())
    if slot.swapped:
        return tensor.then(shape, _swap_halves)
    if slot.joined_rows:
        return tensor.then((shape[0] * shape[1],), torch.flatten)
    if slot.conv and len(shape) == 2:
        return tensor.then((*shape, 1, 1), lambda t: t[:, :, None, None])
    return tensor


def _swap_halves(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.roll(tensor.shape[0] // 2, 0)
