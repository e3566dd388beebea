"""Where each tensor of a part stands in the original layout. Torch-free; `moves` moves tensors there and back.

A part's layout is a tuple of slots, one per tensor of ours; what the two layouts do differently beyond names is in
the slot: OpenCLIP keeps query, key and value in one tensor and its projection transposed, and the VAE's attention is
made of 1x1 convolutions (LDM's `AttnBlock`, open_clip's `TextTransformer`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


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


def missing_originals(slots: Iterable[Slot], names: Iterable[str]) -> list[str]:
    """Return the original names that a layout needs and `names` does not hold."""
    there = set(names)
    return sorted({s.original for s in slots} - there)
