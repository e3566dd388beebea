"""The undo history of a mask: the tiles that each step changed, compressed."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from modules.data.transforms.geometry import Box
from modules.data.transforms.masks import Mask

TILE_PX = 256
_MAX_STEPS = 200
_MAX_BYTES = 256_000_000

TileKey = tuple[int, int]  # row and column


def tile_box(key: TileKey, mask: Mask) -> Box:
    """Return the place of a tile in a mask."""
    top, left = key[0] * TILE_PX, key[1] * TILE_PX
    return Box(left, top, min(left + TILE_PX, mask.shape[1]), min(top + TILE_PX, mask.shape[0]))


def tiles_in(box: Box) -> Iterator[TileKey]:
    """Yield the tiles that a box touches; an empty box touches none."""
    if box.right_px <= box.left_px or box.bottom_px <= box.top_px:
        return
    for row in range(box.top_px // TILE_PX, (box.bottom_px - 1) // TILE_PX + 1):
        for column in range(box.left_px // TILE_PX, (box.right_px - 1) // TILE_PX + 1):
            yield row, column


def slices(box: Box) -> tuple[slice, slice]:
    """Return a box as the index of an array of (height, width)."""
    return slice(box.top_px, box.bottom_px), slice(box.left_px, box.right_px)


@dataclass(frozen=True, slots=True)
class Step:
    """A change of a mask from one state to another: the content of each changed tile in the state to return to.

    `state` is the number of that state. Without `has_mask` there is no mask in it, and no tile is stored.
    """

    state: int
    tiles: Mapping[TileKey, bytes]
    has_mask: bool = True

    @property
    def size_bytes(self) -> int:
        """The memory it needs."""
        return sum(len(tile) for tile in self.tiles.values())


def step_to(state: int, tiles: Mapping[TileKey, Mask]) -> Step:
    """Return a step that restores the content of tiles."""
    return Step(state, {key: zlib.compress(tile.tobytes(), 1) for key, tile in tiles.items()})


def copies(mask: Mask, keys: Iterable[TileKey]) -> dict[TileKey, Mask]:
    """Return copies of tiles."""
    return {key: mask[slices(tile_box(key, mask))].copy() for key in keys}


def restore(mask: Mask, step: Step) -> Box | None:
    """Write the tiles of a step into a mask; return the box around them."""
    boxes = []
    for key, content in step.tiles.items():
        box = tile_box(key, mask)
        index = slices(box)
        mask[index] = np.frombuffer(zlib.decompress(content), np.uint8).reshape(mask[index].shape)
        boxes.append(box)
    return box_around(boxes)


def box_around(boxes: Iterable[Box]) -> Box | None:
    """Return the smallest box around some; None around none."""
    all_boxes = list(boxes)
    if not all_boxes:
        return None
    return Box(
        min(b.left_px for b in all_boxes),
        min(b.top_px for b in all_boxes),
        max(b.right_px for b in all_boxes),
        max(b.bottom_px for b in all_boxes),
    )


class History:
    """Steps to undo and to redo. The oldest are dropped when there are too many."""

    def __init__(self) -> None:
        self.undone: list[Step] = []
        self.done: list[Step] = []

    def add(self, step: Step) -> None:
        """Add a step; what was undone can no longer be redone."""
        self.undone.clear()
        self.done.append(step)
        while len(self.done) > _MAX_STEPS or sum(s.size_bytes for s in self.done) > _MAX_BYTES:
            self.done.pop(0)
