"""Zoom and place of a large image in a view, and its pixels at that zoom."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, floor

from PIL import Image

from modules.data.transforms.geometry import Box

_MAX_ZOOM, _MIN_ZOOM = 32.0, 0.01
_MIN_LEVEL_PX = 256
_MAX_FIT_ZOOM = 4.0
_SHADE = 0.72  # opacity of the colour over the black of a mask


@dataclass
class Viewport:
    """Which part of an image a view shows: `zoom` view pixels per image pixel, the image's corner at `left`, `top`."""

    image_px: tuple[int, int] = (1, 1)
    view_px: tuple[int, int] = (1, 1)
    zoom: float = 1.0
    left: float = 0.0
    top: float = 0.0
    is_fitted: bool = field(default=True)

    def show(self, image_px: tuple[int, int]) -> None:
        """Show another image, fitted to the view."""
        self.image_px = image_px
        self.fit()

    def resize(self, view_px: tuple[int, int]) -> None:
        """Follow the size of the view: fitted, or with the same point in the middle."""
        old, self.view_px = self.view_px, view_px
        if self.is_fitted:
            self.fit()
        else:
            self.left += (view_px[0] - old[0]) / 2
            self.top += (view_px[1] - old[1]) / 2
            self._keep_in_view()

    def fit(self) -> None:
        """Show the whole image."""
        self.is_fitted = True
        shares = (view / image for view, image in zip(self.view_px, self.image_px, strict=True))
        self.zoom = min(_MAX_FIT_ZOOM, max(_MIN_ZOOM, min(shares)))
        self._keep_in_view()

    def zoom_at(self, factor: float, x: float, y: float) -> None:
        """Zoom by a factor; the image's point at a place of the view stays there."""
        at = self.to_image(x, y)
        self.zoom = min(_MAX_ZOOM, max(_MIN_ZOOM, self.zoom * factor))
        self.is_fitted = False
        self.left, self.top = x - at[0] * self.zoom, y - at[1] * self.zoom
        self._keep_in_view()

    def pan(self, across: float, down: float) -> None:
        """Move the image in the view, by view pixels."""
        self.is_fitted = False
        self.left += across
        self.top += down
        self._keep_in_view()

    def to_image(self, x: float, y: float) -> tuple[float, float]:
        """Return the image's point at a place of the view."""
        return (x - self.left) / self.zoom, (y - self.top) / self.zoom

    def to_view(self, box: Box) -> Box:
        """Return the pixels of the view that a part of the image touches, clipped to the view."""
        width, height = self.view_px
        return Box(
            min(width, max(0, floor(self.left + box.left_px * self.zoom) - 1)),
            min(height, max(0, floor(self.top + box.top_px * self.zoom) - 1)),
            min(width, max(0, ceil(self.left + box.right_px * self.zoom) + 1)),
            min(height, max(0, ceil(self.top + box.bottom_px * self.zoom) + 1)),
        )

    def _keep_in_view(self) -> None:
        """Centre an image that is smaller than the view; keep a larger one over all of it."""
        self.left = _clamp_start(self.left, self.image_px[0] * self.zoom, self.view_px[0])
        self.top = _clamp_start(self.top, self.image_px[1] * self.zoom, self.view_px[1])


def _clamp_start(start: float, length: float, room: float) -> float:
    if length <= room:
        return (room - length) / 2
    return min(0.0, max(room - length, start))


class ScaledImage:
    """An image with smaller versions of it, so that any part is drawn quickly at any zoom."""

    def __init__(self, image: Image.Image) -> None:
        self.size = image.size
        self._levels = [image]
        while min(self._levels[-1].size) >= 2 * _MIN_LEVEL_PX:
            self._levels.append(self._levels[-1].reduce(2))

    def part(self, viewport: Viewport, box: Box, background: tuple[int, int, int]) -> Image.Image:
        """Return a box of the view as RGB, with the background outside the image."""
        level = 0
        while level + 1 < len(self._levels) and viewport.zoom * 2 ** (level + 1) <= 1:
            level += 1
        return drawn_part(self._levels[level], self.size, viewport, box, background)


def drawn_part(
    image: Image.Image,
    size: tuple[int, int],
    viewport: Viewport,
    box: Box,
    background: tuple[int, int, int] | int,
) -> Image.Image:
    """Return a box of the view with an image, which stands for one of `size` pixels, at its place."""
    result = Image.new(image.mode, (box.size.width_px, box.size.height_px), background)
    whole = viewport.to_view(Box(0, 0, *size))
    left, top = max(box.left_px, whole.left_px), max(box.top_px, whole.top_px)
    right, bottom = min(box.right_px, whole.right_px), min(box.bottom_px, whole.bottom_px)
    # Whole view pixels whose middle is in the image.
    left, top = max(left, ceil(viewport.left - 0.5)), max(top, ceil(viewport.top - 0.5))
    right = min(right, ceil(viewport.left + size[0] * viewport.zoom - 0.5))
    bottom = min(bottom, ceil(viewport.top + size[1] * viewport.zoom - 0.5))
    if left >= right or top >= bottom:
        return result
    x0, y0 = viewport.to_image(left, top)
    x1, y1 = viewport.to_image(right, bottom)
    across, down = image.width / size[0], image.height / size[1]
    part = (
        max(0.0, x0 * across),
        max(0.0, y0 * down),
        min(float(image.width), x1 * across),
        min(float(image.height), y1 * down),
    )
    method = Image.Resampling.NEAREST if viewport.zoom * size[0] / image.width >= 2 else Image.Resampling.BILINEAR
    result.paste(image.resize((right - left, bottom - top), method, box=part), (left - box.left_px, top - box.top_px))
    return result


def shade_mask(image: Image.Image, mask: Image.Image, colour: tuple[int, int, int]) -> Image.Image:
    """Return an image with a colour over the black of a mask of the same size."""
    alpha = mask.point([round((255 - value) * _SHADE) for value in range(256)])
    return Image.composite(Image.new("RGB", image.size, colour), image, alpha)
