"""The tiles in which a VAE encodes and decodes large images: which images have some, and where they are.

A VAE needs memory in proportion to an image's pixels: one with the channels of Stable Diffusion's and FLUX.1's, in
float32, 2.7 GB to encode 1024 x 1024 px and 3.2 GB to decode them (the estimate of its traced passes), so that these
fit a card with 6 GB as a whole. In tiles the results differ a little, since its normalizations see one tile at a time.
So for images that a run learns from or is measured on, the size alone decides, never the memory that happens to be
free: latents are the same on every machine, and the keys of cached ones contain the tiles. Samples are only looked at:
they are decoded as a whole, or in the largest tiles that fit the free memory (`tiles_that_fit`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Tiling:
    """Images with more than `most_pixels` are in tiles of at most `side_px` squared, which overlap by `overlap_px` or
    more.
    """

    most_pixels: int
    side_px: int
    overlap_px: int
    step_px: int = 64
    """Tiles begin at multiples of it: a multiple of the side in pixels that any latent covers."""

    @property
    def identity(self) -> str:
        """The tiling in the keys of cached latents."""
        return f"tiles of {self.side_px} px over {self.overlap_px} px"

    def applies(self, width_px: int, height_px: int) -> bool:
        """Return whether an image is in tiles."""
        return width_px * height_px > self.most_pixels

    def starts(self, length_px: int) -> list[int]:
        """Return where the tiles along a side begin, evenly spaced."""
        room = length_px - self.side_px
        if room <= 0:
            return [0]
        last = -(-room // (self.side_px - self.overlap_px - self.step_px))  # rounding widens a gap by a step at most
        return [room * index // last // self.step_px * self.step_px for index in range(last)] + [room]


VAE_TILES = Tiling(most_pixels=1536 * 1024, side_px=1024, overlap_px=192)
"""The tiles of a VAE by the size of an image alone."""
WHOLE = replace(VAE_TILES, most_pixels=1 << 62)
"""No tiles, whatever the size."""
_SAMPLE_TILES = tuple(replace(VAE_TILES, most_pixels=side_px**2, side_px=side_px) for side_px in (1024, 768, 512))
SMALLEST_TILES = _SAMPLE_TILES[-1]
"""The tiles of samples that need least memory."""


def tiles_that_fit(fits: Callable[[Tiling], bool]) -> Tiling:
    """Return no tiles if an image fits as a whole, or else the largest that fit; the smallest in memory if none do.

    `fits(tiling)` returns whether the memory is enough for them.
    """
    return next((tiling for tiling in (WHOLE, *_SAMPLE_TILES) if fits(tiling)), SMALLEST_TILES)
