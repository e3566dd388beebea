"""The slots of a part's tensors in the original layout. `moves.py` converts tensors there and back.

A part's layout is a tuple of slots, one per tensor of ours. A slot also records the differences beyond names: query,
key and value in one tensor, a transposed projection (open_clip's `TextTransformer`), and attention that consists of 1x1
convolutions (LDM's `AttnBlock`).
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
    layout without the part's prefix. With more than one of `shares`, the original contains several tensors along its
    first axis, whose lengths are in proportion to the shares, and this is the one at `piece`. `conv`: the original has
    two more axes of length one. `transposed`: the original is the transpose. `identity`: a file without the
    original means the identity matrix of this size. With `joined_rows` the original has our rows, as many as that, one
    after the other in a single axis.
    """

    key: str
    original: str
    piece: int = 0
    shares: tuple[int, ...] = (1,)
    conv: bool = False
    transposed: bool = False
    swapped: bool = False
    identity: int = 0
    joined_rows: int = 0

    def rows(self, total: int) -> tuple[int, int]:
        """Return the range of rows, first and behind the last, of an original with `total` rows."""
        whole = sum(self.shares)
        before = sum(self.shares[: self.piece])
        return total * before // whole, total * (before + self.shares[self.piece]) // whole

    def shape_of(self, original: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of this tensor from the shape of the original."""
        if len(self.shares) > 1 and original:
            start, stop = self.rows(original[0])
            return (stop - start, *original[1:])
        if self.transposed:
            return original[::-1]
        if self.joined_rows and len(original) == 1:
            return self.joined_rows, original[0] // self.joined_rows
        return original[:2] if self.conv else original


def fused_slots(keys: Iterable[str], original: str) -> Iterator[Slot]:
    """Yield the slots of tensors that the original layout has as one, in equal shares and in the order of its rows."""
    keys = tuple(keys)
    for piece, key in enumerate(keys):
        yield Slot(key, original, piece=piece, shares=(1,) * len(keys))


def limit_layers(layers: Iterable[_T]) -> Iterator[_T]:
    """Yield the layers that a config describes. Raises ValueError if they are more than any model has.

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
    return sorted({s.original for s in slots if not s.identity} - there)
