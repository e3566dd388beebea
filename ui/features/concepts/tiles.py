"""The tiles of many images, each made when it is first shown. No Tk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import overload

from modules.data.scan import SourceImage
from ui.widgets.image_grid import Tile

_MAX_KEPT = 1000


class LazyTiles(Sequence[Tile]):
    """A tile for each image, with its caption."""

    def __init__(self, images: Sequence[SourceImage], caption: Callable[[SourceImage], str]) -> None:
        self._images = images
        self._caption = caption
        self._tile = lru_cache(_MAX_KEPT)(self._made)

    def __len__(self) -> int:
        return len(self._images)

    @overload
    def __getitem__(self, index: int) -> Tile: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Tile]: ...
    def __getitem__(self, index: int | slice) -> Tile | Sequence[Tile]:
        if isinstance(index, slice):
            return [self._tile(n) for n in range(len(self))[index]]
        return self._tile(range(len(self))[index])

    def _made(self, index: int) -> Tile:
        image = self._images[index]
        return Tile(image.path, partial(self._caption, image))
