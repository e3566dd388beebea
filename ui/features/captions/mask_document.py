"""The mask of one image while it is edited: brush, fill, clear, invert, undo, and its file."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from modules.data.images import open_image, upright
from modules.data.transforms.geometry import Box
from modules.data.transforms.masks import Mask, as_mask
from modules.system.atomic import write_bytes
from ui.features.captions.document import ConflictError
from ui.features.captions.strokes import (
    Brush,
    Point,
    area_around,
    box_of,
    line_box,
    line_coverage,
    mix_stroke,
)
from ui.features.captions.tiles import (
    History,
    Step,
    TileKey,
    box_around,
    copies,
    restore,
    slices,
    step_to,
    tile_box,
    tiles_in,
)

BLACK, WHITE = 0, 255


class MaskDocument:
    """A mask of the size of its image: white is trained with full weight, black with the unmasked weight.

    An image without a mask is trained as a whole. Its first white stroke starts a black mask, so that only what is
    drawn is trained; its first black stroke starts a white one.
    """

    def __init__(self, paths: Sequence[Path], width_px: int, height_px: int) -> None:
        self.path = paths[0]
        """Where it is written; it is read from the first of the paths that is a file."""
        self.pixels: Mask = np.full((height_px, width_px), WHITE, np.uint8)
        self.exists = False
        """Whether the image has a mask; without one `pixels` are white."""
        self.history = History()
        self._digest = _digest(self.path)
        self._state = self._saved_state = self._newest_state = 0
        self._brush: Brush | None = None
        self._last: Point = (0.0, 0.0)
        self._before: dict[TileKey, Mask] = {}
        self._coverage: dict[TileKey, NDArray[np.uint8]] = {}
        self._had_mask = False
        self._parked = Step(0, {})
        self._parked_shape = self.pixels.shape
        path = next((path for path in paths if path.is_file()), None)
        if path is not None:
            with open_image(path) as raw:
                mask = as_mask(upright(raw))
            if mask.size != (width_px, height_px):
                mask = mask.resize((width_px, height_px), Image.Resampling.BILINEAR)
            self.pixels = np.array(mask, np.uint8)
            self.exists = True

    @property
    def box(self) -> Box:
        """The whole mask."""
        return Box(0, 0, self.pixels.shape[1], self.pixels.shape[0])

    @property
    def is_edited(self) -> bool:
        """Whether it differs from its file."""
        return self._state != self._saved_state

    @property
    def can_undo(self) -> bool:
        """Whether there is a step to undo."""
        return bool(self.history.done)

    @property
    def can_redo(self) -> bool:
        """Whether there is a step to redo."""
        return bool(self.history.undone)

    # -- drawing

    def begin_stroke(self, brush: Brush, at: Point) -> Box | None:
        """Begin a stroke of the brush with a dot; return what changed."""
        self._brush, self._last = brush, at
        self._before, self._coverage = {}, {}
        self._start_mask(brush.value)
        return self.stroke_to(at)

    def stroke_to(self, at: Point) -> Box | None:
        """Draw a line to a point. Within a stroke the opacity does not add up. Return what changed."""
        brush = self._brush
        if brush is None:
            return None
        box = line_box(self._last, at, brush.radius_px, self.pixels)
        changed_tiles = []
        for key in tiles_in(box):
            tile = tile_box(key, self.pixels)
            here = slices(tile)
            before = self._before.setdefault(key, self.pixels[here].copy())
            coverage = line_coverage(self._last, at, brush.radius_px, tile)
            if not coverage.any():
                continue
            so_far = self._coverage.get(key)
            self._coverage[key] = coverage if so_far is None else np.maximum(so_far, coverage)
            self.pixels[here] = mix_stroke(before, brush.value, self._coverage[key], brush.opacity)
            changed_tiles.append(tile)
        self._last = at
        return box_around(changed_tiles)

    def end_stroke(self) -> None:
        """End the stroke: one step of the history, unless it changed nothing."""
        if self._brush is None:
            return
        self._brush = None
        now = self.pixels
        self._add_step({k: t for k, t in self._before.items() if not np.array_equal(t, now[slices(tile_box(k, now))])})
        self._before, self._coverage = {}, {}

    def fill(self, at: Point, value: int, opacity: float = 1.0) -> Box | None:
        """Fill the area around a point up to the next edge of the mask; return what changed."""
        x, y = int(at[0]), int(at[1])
        height, width = self.pixels.shape
        if not (0 <= x < width and 0 <= y < height):
            return None
        self._start_mask(value)
        area = area_around(self.pixels, x, y)
        box = box_of(area)
        grown = Box(
            max(0, box.left_px - 1),
            max(0, box.top_px - 1),
            min(width, box.right_px + 1),
            min(height, box.bottom_px + 1),
        )
        here = slices(grown)
        inside = area[here]
        # The smooth edge of an outline lies between the area and the outline: without it a thin seam would remain.
        edge = _neighbours(inside) & ~inside
        before = self.pixels[here].copy()
        filled = mix_stroke(before, value, np.full(before.shape, 255, np.uint8), opacity)
        stronger = np.maximum(before, filled) if value >= 128 else np.minimum(before, filled)
        return self._change(grown, np.where(inside, filled, np.where(edge, stronger, before)))

    def set_all(self, value: int) -> Box | None:
        """Make the whole mask black or white; return what changed."""
        self._had_mask = self.exists
        self.exists = True
        return self._change(self.box, np.full(self.pixels.shape, value, np.uint8))

    def invert(self) -> Box | None:
        """Invert the mask; an image without one gets a black mask. Return what changed."""
        self._had_mask = self.exists
        self.exists = True
        return self._change(self.box, 255 - self.pixels)

    # -- history

    def undo(self) -> Box | None:
        """Undo a step; return what changed."""
        return self._swap(self.history.done, self.history.undone)

    def redo(self) -> Box | None:
        """Redo a step; return what changed."""
        return self._swap(self.history.undone, self.history.done)

    # -- file

    def save(self) -> bool:
        """Write the mask as an 8-bit PNG if it was edited, and return whether it was.

        Raises ConflictError if the file has changed since it was read, and OSError if it cannot be written.
        An undone first mask is written as a white one, because a file is never deleted: it trains the same.
        """
        if not self.is_edited or (not self.exists and not self._digest):
            return False
        if _digest(self.path) != self._digest:
            raise ConflictError(self.path.name)
        self.overwrite()
        return True

    def overwrite(self) -> None:
        """Write the mask whatever its file contains."""
        stream = io.BytesIO()
        Image.fromarray(self.pixels).save(stream, "PNG", compress_level=4)
        write_bytes(Path(os.path.realpath(self.path)), stream.getvalue())
        self._digest = _digest(self.path)
        self._saved_state = self._state

    def park(self) -> None:
        """Give the memory of the pixels back while another image is shown; the history stays."""
        self.end_stroke()
        self._parked = step_to(self._state, copies(self.pixels, tiles_in(self.box)))
        self._parked_shape = self.pixels.shape
        self.pixels = np.zeros((0, 0), np.uint8)

    def unpark(self) -> bool:
        """Show it again; return False if its file was changed meanwhile, so that it must be read anew."""
        if self.has_other_file():
            return False
        self.pixels = np.empty(self._parked_shape, np.uint8)
        restore(self.pixels, self._parked)
        return True

    def has_other_file(self) -> bool:
        """Whether another program changed the file since it was read."""
        return _digest(self.path) != self._digest

    # -- inside

    def _start_mask(self, value: int) -> None:
        self._had_mask = self.exists
        if not self.exists:
            self.pixels[:] = BLACK if value >= 128 else WHITE
            self.exists = True

    def _change(self, box: Box, new: Mask) -> Box | None:
        """Replace a part of the mask as one step."""
        old_tiles = copies(self.pixels, tiles_in(box))
        self.pixels[slices(box)] = new
        now = self.pixels
        self._add_step(
            {k: tile for k, tile in old_tiles.items() if not np.array_equal(tile, now[slices(tile_box(k, now))])}
        )
        return box if self._had_mask else self.box

    def _add_step(self, before: Mapping[TileKey, Mask]) -> None:
        """Add a step, given the changed tiles as they were before it; without any nothing is added."""
        if not before and self._had_mask:
            return
        self.history.add(step_to(self._state, before) if self._had_mask else Step(self._state, {}, has_mask=False))
        self._newest_state += 1
        self._state = self._newest_state

    def _swap(self, source: list[Step], target: list[Step]) -> Box | None:
        """Return to the state of the newest step of a list; the way back is added to the other list."""
        self.end_stroke()
        if not source:
            return None
        step = source.pop()
        is_whole = step.has_mask != self.exists
        keys = tiles_in(self.box) if is_whole else step.tiles
        back = step_to(self._state, copies(self.pixels, keys)) if self.exists else Step(self._state, {}, has_mask=False)
        target.append(back)
        if step.has_mask:
            changed_box = restore(self.pixels, step)
        else:
            self.pixels[:] = WHITE
        self._state, self.exists = step.state, step.has_mask
        return self.box if is_whole else changed_box


def _neighbours(area: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return an area together with its neighbouring pixels, diagonal ones included."""
    grown = area.copy()
    grown[1:] |= area[:-1]
    grown[:-1] |= area[1:]
    wide = grown.copy()
    wide[:, 1:] |= grown[:, :-1]
    wide[:, :-1] |= grown[:, 1:]
    return wide


def _digest(path: Path) -> bytes:
    """Return the digest of a file's content; empty without a file."""
    try:
        return hashlib.sha1(path.read_bytes(), usedforsecurity=False).digest()
    except FileNotFoundError:
        return b""
