"""Large images in tiles: where they are, how they are blended, how far the results differ, and what depends on them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import skimage
import torch
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.nn import functional

from modules.config.schema import Config
from modules.data.buckets import ResizeCrop, Size
from modules.data.cache.key import blank_image_key, image_key
from modules.data.tiles import VAE_TILES, Tiling
from modules.data.transforms.geometry import Geometry
from modules.data.transforms.recipe import Recipe
from modules.families.parts.tiled import run_in_tiles
from modules.families.parts.vae import decode_latents, encode_mean
from trainer.preflight.run_budget import memory_estimate

DEMO_VAE = Path(__file__).parents[2] / "demo" / "model" / "vae"
SMALL = Tiling(most_pixels=300 * 300, side_px=256, overlap_px=64, step_px=16)
WHOLE = replace(SMALL, most_pixels=10**9)


@given(st.integers(1, 600).map(lambda n: 16 * n))
def test_tiles_cover_a_side_and_overlap(length_px: int) -> None:
    starts = VAE_TILES.starts(length_px)
    side_px = min(VAE_TILES.side_px, length_px)
    assert starts[0] == 0
    assert starts[-1] + side_px == length_px
    gaps = [b - a for a, b in pairwise(starts)]
    assert all(0 < gap <= side_px - VAE_TILES.overlap_px for gap in gaps)
    assert all(start % VAE_TILES.step_px == 0 for start in starts[:-1])


@pytest.mark.parametrize(("height", "width"), [(640, 416), (256, 1024), (528, 272)])
def test_what_sees_no_further_than_a_latent_is_the_same_in_tiles(height: int, width: int) -> None:
    image = torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(0))
    pooled = run_in_tiles(lambda x: functional.avg_pool2d(x, 8), image, SMALL, px_in=1, px_out=8)
    torch.testing.assert_close(pooled, functional.avg_pool2d(image, 8))
    enlarged = run_in_tiles(lambda x: functional.interpolate(x, scale_factor=8), pooled, SMALL, px_in=8, px_out=1)
    torch.testing.assert_close(enlarged, functional.interpolate(pooled, scale_factor=8))


@torch.no_grad()
def test_a_photograph_in_tiles_is_nearly_that_as_a_whole(one_thread: None) -> None:
    """The bound, for the demo's trained VAE with tiles of a quarter of the usual side: latents within 10 % of their
    deviation, decoded images within 2.5 of 255, and a reconstruction as good.
    """
    vae = AutoencoderKL.from_pretrained(DEMO_VAE, local_files_only=True).eval()
    pixels = np.asarray(Image.open(Path(skimage.__file__).parent / "data" / "rocket.jpg").convert("RGB"))
    image = torch.tensor(pixels[:416, :640]).permute(2, 0, 1)[None] / 127.5 - 1
    whole, tiled = (encode_mean(vae, image, factor=8, tiling=t) for t in (WHOLE, SMALL))
    assert whole.shape == tiled.shape
    assert 0 < rms(whole - tiled) < 0.1 * float(whole.std())
    decoded, in_tiles = (decode_latents(vae.decode, vae, whole, factor=8, tiling=t) for t in (WHOLE, SMALL))
    assert 0 < rms(decoded - in_tiles) * 127.5 < 2.5
    back = decode_latents(vae.decode, vae, tiled, factor=8, tiling=SMALL)
    assert rms(back - image) < 1.1 * rms(decoded - image)
    with torch.enable_grad():  # as a whole, as the estimate of such a pass has it
        assert torch.equal(decode_latents(vae.decode, vae, whole, factor=8, tiling=SMALL), decoded)


def rms(values: torch.Tensor) -> float:
    return float(values.square().mean().sqrt())


def test_only_the_keys_of_images_in_tiles_contain_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def keys(width_px: int, height_px: int) -> list[str]:
        size = Size(width_px, height_px)
        recipe = Recipe(Geometry(ResizeCrop(size, size, 0, 0)))
        image = image_key(digest="d", width_px=width_px, height_px=height_px, recipe=recipe, encoder="e")
        return [image, blank_image_key(bucket=size, encoder="e")]

    sizes = ((1024, 1024), (1536, 1024), (1536, 1088), (2048, 2048))
    before = [keys(*size) for size in sizes]
    monkeypatch.setattr("modules.data.cache.key.VAE_TILES", replace(VAE_TILES, overlap_px=128))
    changed = [a != b for a, b in zip(before, (keys(*size) for size in sizes), strict=True)]
    assert changed == [VAE_TILES.applies(*size) for size in sizes] == [False, False, True, True]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_caching_of_any_size_with_sixteen_channels_fits_6_gb(dtype: str) -> None:
    """By the traced passes of FLUX.1's VAE; and the text encoder, 4B, is on the card alone, before the transformer."""
    model = {"family": "z_image", "base_model": "Tongyi-MAI/Z-Image"}
    parts = {"transformer": {"dtype": "bfloat16"}, "text_encoder": {"dtype": "int8"}, "vae": {"dtype": dtype}}
    config = Config.model_validate(
        {"general": {"train_device": "cuda"}, "model": model, "parts": parts, "training": {"precision": "bfloat16"}}
    )
    weights = {}
    for side_px in (1024, 1536, 2048, 4096):
        estimate = memory_estimate(config, {Size(side_px, side_px): 1, Size(1536, 1024): 1})
        assert estimate is not None
        phases = {p.phase: p for p in estimate.phases}
        assert sum(size for _, size in phases["encoding images"].parts) < 6e9
        weights = {name: p.bytes_of("weights") for name, p in phases.items()}
    assert weights["encoding captions"] < 4.6e9
    assert weights["encoding images"] < 0.4e9
    assert 12e9 < weights["training"] < 12.6e9
