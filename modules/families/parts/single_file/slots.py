"""The slots of a part's tensors in the original layout. Torch-free; `moves.py` converts tensors there and back.

A part's layout is a tuple of slots, one per tensor of ours. A slot also records the differences beyond names: OpenCLIP
keeps query, key and value in one tensor and its projection transposed, and the VAE's attention consists of 1x1
convolutions (LDM's `AttnBlock`, open_clip's `TextTransformer`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

_MAX_LAYERS = 10_000  # SDXL's UNet has 1,700 tensors
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Slot:
    """The slot of one tensor.

    `key` is its name in diffusers or transformers (text layers with "text_model."), `original` its name in the original
    layout without the part's prefix. `piece` of `pieces`: the tensor is this slice of the original along the first
    axis. `conv`: the original has two more axes of length one. `transposed`: the original is the transpose.
    """

    key: str
    original: str
    piece: int = 0
    pieces: int = 1
    conv: bool = False
    transposed: bool = False


def limited(layers: Iterable[_T]) -> Iterator[_T]:
    """Yield the layers that a config describes. Raises ValueError where they are more than any model has.

    A config may come from a file, and a number in it can describe any number of layers.
    """
    for count, layer in enumerate(layers):
        if count >= _MAX_LAYERS:
            raise ValueError(f"more than {_MAX_LAYERS:,} layers")
        yield layer


def module_slots(path: str, original: str, *, bias: bool = True, conv: bool = False) -> Iterator[Slot]:
    """Yield the slots of a module's weight and bias."""
    yield Slot(f"{path}.weight", f"{original}.weight", conv=conv)
    if bias:
        yield Slot(f"{path}.bias", f"{original}.bias")


def missing_originals(slots: Iterable[Slot], names: Iterable[str]) -> list[str]:
    """Return the original names that a layout needs and `names` does not contain."""
    there = set(names)
    return sorted({s.original for s in slots} - there)
