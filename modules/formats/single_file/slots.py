"""Where each tensor of a part stands in the original layout, and moving a part's tensors there and back.

A part's layout is a tuple of slots, one per tensor of ours; what the two layouts do differently beyond names is in
the slot: OpenCLIP keeps query, key and value in one tensor and its projection transposed, and the VAE's attention is
made of 1x1 convolutions (LDM's `AttnBlock`, open_clip's `TextTransformer`). Torch-free but for the tensors passed on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modules.formats.lazy_tensors import LazyTensor


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one tensor.

    `key` is ours (diffusers' and transformers' own, text layers with "text_model."), `original` the other layout's
    without the part's prefix. `piece` of `pieces`: ours is this part of the other along the first axis. `conv`: the
    other has two more axes of length one. `transposed`: the other is this one's transpose.
    """

    key: str
    original: str
    piece: int = 0
    pieces: int = 1
    conv: bool = False
    transposed: bool = False


def module_slots(path: str, original: str, *, bias: bool = True, conv: bool = False) -> Iterator[Slot]:
    """Yield the slots of a module's weight and bias."""
    yield Slot(f"{path}.weight", f"{original}.weight", conv=conv)
    if bias:
        yield Slot(f"{path}.bias", f"{original}.bias")


def to_original(slots: Iterable[Slot], state: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Return a part's tensors under their original names. Every slot's tensor has to be in `state`."""
    from modules.formats.lazy_tensors import joined

    found: dict[str, list[LazyTensor]] = {}
    for slot in sorted(slots, key=lambda s: (s.original, s.piece)):
        found.setdefault(slot.original, []).append(_outward(slot, state[slot.key]))
    return {name: pieces[0] if len(pieces) == 1 else joined(pieces) for name, pieces in found.items()}


def from_original(slots: Sequence[Slot], tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Return a part's tensors under our names. Every slot's original has to be in `tensors`."""
    return {slot.key: _inward(slot, tensors[slot.original]) for slot in slots}


def missing_originals(slots: Iterable[Slot], names: Iterable[str]) -> list[str]:
    """Return the original names that a layout needs and `names` does not hold."""
    there = set(names)
    return sorted({s.original for s in slots} - there)


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
