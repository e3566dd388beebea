"""The speed of caching images, compared to bare encoding of decoded images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from PIL import Image

from benchmarks.measure import Ratio, compare
from modules.data.buckets import Size, resize_crop_for
from modules.data.cache.build import EncodingJob, ImageFile, build_images, to_tensor
from modules.data.cache.store import CacheStore
from modules.data.transforms.apply import load_pixels
from modules.data.transforms.recipe import plain_recipe
from modules.families.parts.vae import encode_mean
from modules.system.devices import CPU, Device, move, pin


def sd_shaped_vae() -> AutoencoderKL:
    """Return a VAE with SD 1.x's shapes and random weights (84 million)."""
    return AutoencoderKL(
        block_out_channels=(128, 256, 512, 512),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        latent_channels=4,
        layers_per_block=2,
        sample_size=512,
    ).eval()


@torch.no_grad()
def cache_against_bare(folder: Path, device: Device, *, num_images: int, side_px: int, rounds: int) -> Ratio:
    """Return the speed of caching images from files, compared to the VAE alone on pixels already on the device."""
    vae = sd_shaped_vae().to(device.torch)
    sizes = (Size(side_px, side_px),)
    jobs = []
    for index in range(num_images):
        path = folder / f"{index}.jpg"
        _draw(path, side_px * 3 // 2, index)
        recipe = plain_recipe(resize_crop_for(side_px * 3 // 2, side_px * 3 // 2, sizes))
        jobs.append(EncodingJob(f"{index:02d}", ImageFile(path, recipe)))
    ready = [move(to_tensor(load_pixels(j.image.path, j.image.recipe))[None], device) for j in jobs]
    store = CacheStore(folder / "cache")
    batch_size = 1 if device.is_cpu else 8  # as in a run

    def encode(images_B3PP: torch.Tensor) -> torch.Tensor:
        return move(encode_mean(vae, move(images_B3PP, device), factor=8), CPU)

    def ours() -> None:
        for job in jobs:
            store.remove(job.key)
        for _ in build_images(
            jobs, store, encode, threads=2, batch_size=batch_size, stage=lambda images: pin(images, device)
        ):
            pass

    def bare() -> None:
        for image in ready:
            vae.encode(image).latent_dist.mode()

    return compare(ours, bare, rounds=rounds, device=device)


def _draw(path: Path, side_px: int, seed: int) -> None:
    """Write a JPEG like a photograph: smooth, with some noise."""
    draw = np.random.default_rng(seed)
    coarse = Image.fromarray(draw.integers(0, 256, (12, 12, 3), dtype=np.uint8)).resize((side_px, side_px))
    noisy = np.asarray(coarse, dtype=np.int16) + draw.integers(-8, 9, (side_px, side_px, 3))
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=92)
