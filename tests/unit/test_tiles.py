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
from modules.config.sections.evaluation import SamplePrompt
from modules.data.buckets import ResizeCrop, Size
from modules.data.cache.key import blank_image_key, image_key
from modules.data.tiles import VAE_TILES, Tiling
from modules.data.transforms.geometry import Geometry
from modules.data.transforms.recipe import Recipe
from modules.families.parts.frame_vae import AutoencoderKLQwenImage
from modules.families.parts.vae import decode_latents, encode_drawn, encode_mean, run_in_tiles
from modules.system.devices import CPU, Device
from tests.builders.pipelines import load_tiny, sample_with_ours
from tests.builders.qwen_vae import tiny_qwen_vae
from trainer.preflight.run_budget import memory_estimate
from trainer.preflight.sample_tiles import SampleTiles
from trainer.run.machine import Machine
from trainer.step.precision import Precision

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


@pytest.mark.full
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


@torch.no_grad()
def test_qwen_images_autoencoder_in_tiles_is_nearly_that_as_a_whole(one_thread: None) -> None:
    """Its normalizations are of single places, so that only its attention and the margins differ.

    Here with random weights, whose attention is the same everywhere, and so contains every place outside of a tile.
    """
    published = tiny_qwen_vae()
    vae = AutoencoderKLQwenImage.from_config(published.config).eval()
    vae.load_state_dict(published.state_dict())
    latents = torch.randn(1, vae.config.z_dim, 36, 40, generator=torch.Generator().manual_seed(0))
    whole, in_tiles = (decode_latents(vae.decode, vae, latents, factor=8, tiling=t) for t in (WHOLE, SMALL))
    assert whole.shape == in_tiles.shape
    assert 0 < rms(whole - in_tiles) < 0.1 * float(whole.std())


@torch.no_grad()
def test_a_drawn_latent_of_a_large_image_is_nearly_that_as_a_whole(one_thread: None) -> None:
    vae = AutoencoderKL.from_pretrained(DEMO_VAE, local_files_only=True).eval()
    image = torch.rand(1, 3, 416, 320, generator=torch.Generator().manual_seed(0)) * 2 - 1
    drawn = [
        encode_drawn(vae, image, torch.Generator().manual_seed(1), factor=8, tiling=tiling) for tiling in (WHOLE, SMALL)
    ]
    expected = vae.encode(image).latent_dist.sample(torch.Generator().manual_seed(1)) * vae.config.scaling_factor
    torch.testing.assert_close(drawn[0], expected)
    assert 0 < rms(drawn[0] - drawn[1]) < 0.1 * float(drawn[0].std())


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
        weights = {name: dict(p.parts).get("weights", 0) for name, p in phases.items()}
    assert weights["encoding captions"] < 4.6e9
    assert weights["encoding images"] < 0.4e9
    assert 12e9 < weights["training"] < 12.6e9


# -- samples


def config_for_samples(family: str, model: str, **general: bool) -> Config:
    part = {"dtype": "float32"}
    tree = {"general": {"train_device": "cuda", **general}, "model": {"family": family, "base_model": model}}
    return Config.model_validate({**tree, "parts": {"vae": part}})


MODELS = {
    "sdxl": "stabilityai/stable-diffusion-xl-base-1.0",
    "flux2_klein": "black-forest-labs/FLUX.2-klein-base-4B",
    "qwen_image": "Qwen/Qwen-Image-2512",
}


@pytest.mark.parametrize("family", MODELS)
def test_a_sample_is_decoded_as_a_whole_where_it_fits_or_in_the_largest_tiles_that_do(family: str) -> None:
    """2048 x 2048 px in float32 need 11 to 13 GB as a whole, and 2.8 to 3.3, 1.7 to 1.9 and 0.8 to 0.9 GB in tiles."""
    free = [0]
    tiles = SampleTiles(config_for_samples(family, MODELS[family]), lambda: free[0])
    found = []
    for gigabytes in (80, 17, 6, 3, 1.5, 0.5):
        free[0] = round(gigabytes * 1e9)
        tiling = tiles.of(2048, 2048)
        found.append(tiling.side_px if tiling.applies(2048, 2048) else 0)
    assert found == [0, 0, 1024, 768, 512, 512]
    free[0] = round(0.5e9)
    assert not tiles.of(512, 512).applies(512, 512)
    free[0] = round(3e9)
    assert tiles.of(1536, 1024).applies(1536, 1024), "also below the size from which on all others are in tiles"


def test_what_is_free_of_a_gpu_contains_what_its_allocator_only_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"mem_get_info": (5, 24), "memory_reserved": 12, "memory_allocated": 9}.items():
        monkeypatch.setattr(torch.cuda, name, lambda _device, value=value: value)
    machine = Machine(Device("cuda:0"), CPU, Precision("float32", CPU), None)
    assert machine.free_now() == 5 + 12 - 9
    assert replace(machine, assumed_free_bytes=10).free_now() == 10 - 9
    assert replace(machine, train_device=Device("mps")).free_now() is None
    assert (replace(machine, train_device=CPU).free_now() or 0) > 10**6


def test_the_size_decides_where_the_free_memory_must_not_or_is_not_known(tmp_path: Path) -> None:
    config = config_for_samples("sdxl", MODELS["sdxl"])
    deterministic = config_for_samples("sdxl", MODELS["sdxl"], deterministic=True)
    assert SampleTiles(deterministic, lambda: 1).of(2048, 2048) == VAE_TILES
    assert SampleTiles(config, lambda: None).of(2048, 2048) == VAE_TILES
    unknown = config_for_samples("sdxl", str(tmp_path))
    assert SampleTiles(unknown, lambda: 1).of(2048, 2048) == VAE_TILES


def test_the_estimate_counts_the_tiles_of_samples_and_none_with_circular_padding() -> None:
    def decoding(**model: object) -> int:
        prompt = {"prompt": "x", "width_px": 2048, "height_px": 2048}
        tree = {"sampling": {"prompts": [prompt]}, "general": {"deterministic": model.pop("deterministic", False)}}
        model = {"family": "sdxl", "base_model": MODELS["sdxl"], **model}
        parts = {"vae": {"dtype": "float32"}}
        estimate = memory_estimate(
            Config.model_validate({**tree, "model": model, "parts": parts}), {Size(1024, 1024): 1}
        )
        assert estimate is not None
        phase = estimate.phase("decoding samples")
        assert phase is not None
        return dict(phase.parts)["activations"]

    assert 0.8e9 < decoding() < 1e9
    assert 3.2e9 < decoding(deterministic=True) < 3.5e9
    assert decoding(circular_padding=True) > 12e9


def test_a_sample_is_decoded_in_the_tiles_that_are_chosen(tiny_sd: Path) -> None:
    family = load_tiny(tiny_sd)
    prompt = SamplePrompt(prompt="a disc", width_px=128, height_px=64, steps=1)
    asked: list[tuple[int, int]] = []

    def tiles_of(width_px: int, height_px: int) -> Tiling:
        asked.append((width_px, height_px))
        return Tiling(most_pixels=0, side_px=64, overlap_px=16, step_px=16)

    whole, in_tiles = sample_with_ours(family, prompt), sample_with_ours(family, prompt, tiles_of=tiles_of)
    assert asked == [(128, 64)]
    assert whole.shape == in_tiles.shape
    assert (whole != in_tiles).any()
