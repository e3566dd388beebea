"""Converts a part's tensors into the original layout and back, by its slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from modules.families.parts.single_file.slots import Slot
from modules.formats.lazy_tensors import LazyTensor, concatenate


def to_original(slots: Iterable[Slot], state: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Return a part's tensors under their original names. `state` must contain every slot's tensor."""
    found: dict[str, list[LazyTensor]] = {}
    for slot in sorted(slots, key=lambda s: (s.original, s.piece)):
        found.setdefault(slot.original, []).append(_outward(slot, state[slot.key]))
    return {name: pieces[0] if len(pieces) == 1 else concatenate(pieces) for name, pieces in found.items()}


def from_original(slots: Sequence[Slot], tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Return a part's tensors under our names. `tensors` must contain every slot's original."""
    return {slot.key: _inward(slot, tensors[slot.original]) for slot in slots}


def _outward(slot: Slot, tensor: LazyTensor) -> LazyTensor:
    shape = tensor.shape
    if slot.transposed:
        return tensor.then(shape[::-1], lambda t: t.t().contiguous())
    if slot.conv and len(shape) == 2:
        return tensor.then((*shape, 1, 1), lambda t: t[:, :, None, None])
    return tensor


def _inward(slot: Slot, tensor: LazyTensor) -> LazyTensor:
    shape = tensor.shape
    if slot.pieces > 1:
        rows = shape[0] // slot.pieces
        start = slot.piece * rows
        return tensor.then((rows, *shape[1:]), lambda t: t[start : start + rows])
    if slot.transposed:
        return tensor.then(shape[::-1], lambda t: t.t().contiguous())
    if slot.conv and len(shape) > 2:
        return tensor.then(shape[:2], lambda t: t.reshape(t.shape[:2]))
    return tensor
