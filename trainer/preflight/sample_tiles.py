"""The tiles in which samples are decoded: none, or the largest that fit the memory that is free at that moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from modules.config.schema import Config
from modules.data.buckets import Size
from modules.data.tiles import SMALLEST_TILES, VAE_TILES, Tiling, tiles_that_fit
from modules.estimate.architecture import architecture_of
from modules.estimate.passes import Passes
from modules.estimate.recordings import recordings_of
from trainer.preflight.memory_plan import run_plan, sample_tiles
from trainer.preflight.passes import MALFORMED_CONFIG

RESERVE_FOR_DECODING = 0.2
"""Of the free bytes: a sample in tiles differs little, and one that does not fit is lost."""


@dataclass(frozen=True, eq=False)
class SampleTiles:
    """Chooses the tiles in which the samples of a config are decoded.

    `free_now()` returns the free bytes of the training device, None if they are not known. Then, in deterministic runs,
    and where the shapes of the VAE are not known, the size of an image decides.
    """

    config: Config
    free_now: Callable[[], int | None]

    def of(self, width_px: int, height_px: int) -> Tiling:
        """Return the tiles of an image, by the memory that is free now: call it when the VAE is on the device."""
        if sample_tiles(self.config) != SMALLEST_TILES or not SMALLEST_TILES.applies(width_px, height_px):
            return VAE_TILES
        free_bytes, bytes_in = self.free_now(), _decoding_bytes(self.config, Size(width_px, height_px))
        if free_bytes is None or bytes_in is None:
            return VAE_TILES
        limit_bytes = (1 - RESERVE_FOR_DECODING) * free_bytes
        return tiles_that_fit(lambda tiling: bytes_in(tiling) <= limit_bytes)


def _decoding_bytes(config: Config, size: Size) -> Callable[[Tiling], int] | None:
    """Return the function from tiles to the bytes that decoding needs with them; None if they are not known.

    Nothing is traced for it: a sample would wait.
    """
    try:
        architecture = architecture_of(config.model.base_model, config.model.family.name, config.model.variant)
        if architecture is None or (run := run_plan(config, architecture, [size])) is None:
            return None
        known = recordings_of(config.family, architecture.configs)
    except MALFORMED_CONFIG:
        return None
    name = next((n for n in config.family.names_of("vae") if n in known), None)
    if name is None:
        return None
    passes, plan = Passes(config.family, {name: known[name]}), run.plans[name]
    return lambda tiling: passes.vae_peak(
        plan, encodes=False, width_px=size.width_px, height_px=size.height_px, tiling=tiling
    )
