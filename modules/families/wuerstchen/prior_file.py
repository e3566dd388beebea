"""The layers of Wuerstchen's prior, and how files contain it."""

from __future__ import annotations

from collections.abc import Iterator

from modules.families.parts.prior_file import Config, PriorLayers, residual_layers

_KINDS = 3  # each group of blocks has a residual one, one for the time and attention


def _groups(config: Config) -> range:
    return range(0, _KINDS * int(config["depth"]), _KINDS)


def _layers(config: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the layers with the shapes of their weights, but for the attention's projections."""
    channels, latents, text, time = (int(config[key]) for key in ("c", "c_in", "c_cond", "c_r"))
    yield "projection", (channels, latents, 1, 1)
    yield "cond_mapper.0", (channels, text)
    yield "cond_mapper.2", (channels, channels)
    for first in _groups(config):
        yield from residual_layers(f"blocks.{first}", channels)
        yield f"blocks.{first + 1}.mapper", (2 * channels, time)
        yield f"blocks.{first + 2}.attention.to_out.0", (channels, channels)
        yield f"blocks.{first + 2}.kv_mapper.1", (channels, channels)
    yield "out.1", (2 * latents, channels, 1, 1)


def _attention(config: Config) -> Iterator[tuple[str, int]]:
    yield from ((f"blocks.{first + 2}.attention", int(config["c"])) for first in _groups(config))


def _residual(config: Config) -> Iterator[str]:
    yield from (f"blocks.{first}" for first in _groups(config))


LAYERS = PriorLayers(_layers, _attention, _residual, kohya_layout="diffusers")
PRIOR_FILE = LAYERS.denoiser_file("cond_mapper.", attention="blocks.2.attention")
