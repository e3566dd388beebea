"""Stages 1 and 2 of the demo model: the autoencoder, then its decoder alone.

Images are float32 in -1 .. 1 of shape BCHW (B, 3, 64, 64), latents of shape BLHW (B, L, 8, 8), unscaled, with the
model's number of channels L.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from diffusers import AutoencoderKL
from torch.nn import functional

from demo.make.progress import Progress
from demo.make.recipe import AutoencoderRecipe

_MAX_GRADIENT_NORM = 1.0


def to_tensor(images_BHWC: npt.NDArray[np.uint8]) -> torch.Tensor:
    """Return images as float32 in -1 .. 1 of shape (B, C, H, W)."""
    return torch.from_numpy(images_BHWC).permute(0, 3, 1, 2).float() / 127.5 - 1.0


def train_autoencoder(
    vae: AutoencoderKL,
    plain_NHWC: npt.NDArray[np.uint8],
    varied_NHWC: npt.NDArray[np.uint8],
    recipe: AutoencoderRecipe,
    *,
    generator: torch.Generator,
    progress: Progress,
) -> None:
    """Train encoder and decoder in place; every batch is half plain and half varied images.

    Raises DemoModelStopped.
    """
    optimizer = _adamw(list(vae.parameters()), recipe.learning_rate)
    half = recipe.batch_size // 2
    vae.train()
    for step in range(recipe.num_steps):
        _set_cosine_rate(optimizer, recipe.learning_rate, step, recipe.num_steps)
        batch_BHWC = np.concatenate(
            [_draw(plain_NHWC, half, generator), _draw(varied_NHWC, recipe.batch_size - half, generator)]
        )
        loss = _autoencoder_loss(vae, to_tensor(batch_BHWC), recipe, generator)
        _update(vae, optimizer, loss)
        progress.step("autoencoder", step + 1, recipe.num_steps, loss.item())
    vae.eval()


def encode_images(
    vae: AutoencoderKL, images_NHWC: npt.NDArray[np.uint8], *, progress: Progress, batch_size: int = 50
) -> torch.Tensor:
    """Return the latents' means of all images, unscaled, shape (N, L, 8, 8). Raises DemoModelStopped."""
    total = len(images_NHWC)
    parts = []
    for start in range(0, total, batch_size):
        with torch.no_grad():
            batch_BCHW = to_tensor(images_NHWC[start : start + batch_size])
            parts.append(vae.encode(batch_BCHW).latent_dist.mean)
        progress.step("encoding", min(start + batch_size, total), total)
    return torch.cat(parts)


def polish_decoder(
    vae: AutoencoderKL,
    latents_NLHW: torch.Tensor,
    images_NHWC: npt.NDArray[np.uint8],
    recipe: AutoencoderRecipe,
    *,
    generator: torch.Generator,
    progress: Progress,
) -> None:
    """Train the decoder alone, in place, from slightly noisy latents to their images. Raises DemoModelStopped."""
    convolution = vae.post_quant_conv
    decoder = [*vae.decoder.parameters(), *(convolution.parameters() if convolution is not None else ())]
    optimizer = _adamw(decoder, recipe.polish_learning_rate)
    vae.train()
    for step in range(recipe.polish_num_steps):
        _set_cosine_rate(optimizer, recipe.polish_learning_rate, step, recipe.polish_num_steps)
        picked_B = torch.randint(len(latents_NLHW), (recipe.polish_batch_size,), generator=generator)
        latents_BLHW = latents_NLHW[picked_B]
        noise_BLHW = torch.randn(latents_BLHW.shape, generator=generator)
        decoded_BCHW = vae.decode(latents_BLHW + recipe.polish_latent_noise * noise_BLHW).sample
        loss = _image_loss(decoded_BCHW, to_tensor(images_NHWC[picked_B.numpy()]))
        _update(vae, optimizer, loss)
        progress.step("decoder", step + 1, recipe.polish_num_steps, loss.item())
    vae.eval()


def _autoencoder_loss(
    vae: AutoencoderKL, images_BCHW: torch.Tensor, recipe: AutoencoderRecipe, generator: torch.Generator
) -> torch.Tensor:
    """Return L1 + MSE + KL (Kingma and Welling 2014, app. B) + the distance of the first latents to the small image."""
    posterior = vae.encode(images_BCHW).latent_dist
    noise_BLHW = torch.randn(posterior.mean.shape, generator=generator)
    decoded_BCHW = vae.decode(posterior.mean + posterior.std * noise_BLHW).sample
    kl: torch.Tensor = posterior.kl().mean()
    cells = recipe.anchor_cells
    small_BCHW = functional.pixel_unshuffle(functional.avg_pool2d(images_BCHW, kernel_size=8 // cells), cells)
    anchor = functional.mse_loss(posterior.mean[:, : small_BCHW.shape[1]], recipe.anchor_gain * small_BCHW)
    return _image_loss(decoded_BCHW, images_BCHW) + recipe.kl_weight * kl + recipe.anchor_weight * anchor


def _image_loss(decoded_BCHW: torch.Tensor, images_BCHW: torch.Tensor) -> torch.Tensor:
    return functional.l1_loss(decoded_BCHW, images_BCHW) + functional.mse_loss(decoded_BCHW, images_BCHW)


def _draw(images_NHWC: npt.NDArray[np.uint8], num_drawn: int, generator: torch.Generator) -> npt.NDArray[np.uint8]:
    drawn_BHWC: npt.NDArray[np.uint8] = images_NHWC[
        torch.randint(len(images_NHWC), (num_drawn,), generator=generator).numpy()
    ]
    return drawn_BHWC


def _adamw(parameters: list[torch.nn.Parameter], learning_rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.0, fused=True)


def _set_cosine_rate(optimizer: torch.optim.Optimizer, peak: float, step: int, num_steps: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = peak * 0.5 * (1.0 + math.cos(math.pi * step / num_steps))


def _update(vae: AutoencoderKL, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(vae.parameters(), _MAX_GRADIENT_NORM)
    optimizer.step()
