"""Variational autoencoders of diffusers: images to latents and back (Rombach et al. 2022).

A VAE that runs on overlapping tiles, whose results are blended, needs the memory of one tile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

from modules.data.tiles import VAE_TILES, Tiling
from modules.diffusion.latents import LatentNorm, PatchNorm, PerChannel, Scale, ShiftAndScale
from modules.families.parts.circular_padding import is_circular
from modules.families.protocol import Posterior
from modules.system.errors import DarkroomError

_PLACES = 4  # in a square of 2 x 2 latents
_PLACES_FIRST = "has_places_first"
_MUCH_LESS = 0.1


def run_in_tiles(
    run: Callable[[torch.Tensor], torch.Tensor],
    whole_1CHW: torch.Tensor,
    tiling: Tiling,
    *,
    px_in: int,
    px_out: int,
) -> torch.Tensor:
    """Run a function on overlapping tiles of an input and return their blended results, in float32.

    `px_in` and `px_out` are the pixels of an image that a step of the input and of the result covers. Where tiles
    overlap, each has a weight that falls linearly towards its inner edges.
    """
    height_px, width_px = (side * px_in for side in whole_1CHW.shape[-2:])
    rows, columns = tiling.starts(height_px), tiling.starts(width_px)
    ramps_y = _ramps(rows, min(tiling.side_px, height_px) // px_out, px_out, whole_1CHW)
    ramps_x = _ramps(columns, min(tiling.side_px, width_px) // px_out, px_out, whole_1CHW)
    summed, weights = torch.empty(0), torch.zeros(height_px // px_out, width_px // px_out, device=whole_1CHW.device)
    for top, ramp_y in zip(rows, ramps_y, strict=True):
        for left, ramp_x in zip(columns, ramps_x, strict=True):
            y, x = top // px_in, left // px_in
            side = tiling.side_px // px_in
            made = run(whole_1CHW[..., y : y + side, x : x + side]).float()
            if not summed.numel():
                summed = made.new_zeros(*made.shape[:-2], *weights.shape)
            weight = ramp_y[:, None] * ramp_x
            y, x = top // px_out, left // px_out
            summed[..., y : y + made.shape[-2], x : x + made.shape[-1]] += made * weight
            weights[y : y + made.shape[-2], x : x + made.shape[-1]] += weight
    return summed / weights


def _ramps(starts: list[int], length: int, px_out: int, like: torch.Tensor) -> list[torch.Tensor]:
    """Return the weights along a side of each tile: rising over the overlap with the one before it, falling over the
    overlap with the next.
    """
    ramps = []
    for index, start in enumerate(starts):
        ramp = torch.ones(length, device=like.device)
        if index > 0:
            overlap = length - (start - starts[index - 1]) // px_out
            ramp[:overlap] *= (torch.arange(overlap, device=like.device) + 1) / (overlap + 1)
        if index + 1 < len(starts):
            overlap = length - (starts[index + 1] - start) // px_out
            ramp[length - overlap :] *= (torch.arange(overlap, device=like.device).flip(0) + 1) / (overlap + 1)
        ramps.append(ramp)
    return ramps


def norm_of(vae: Any) -> LatentNorm:
    """Return the normalisation of a VAE's latents, from its config and, for a batch norm, from its weights."""
    config = vae.config
    if (batch_norm := getattr(vae, "bn", None)) is not None:
        # On the CPU: Apple's GPUs have no float64.
        deviations = (batch_norm.running_var.cpu().double() + config.batch_norm_eps).sqrt()
        values = [batch_norm.running_mean, deviations]
        if hasattr(vae, _PLACES_FIRST):
            values = [one.unflatten(0, (_PLACES, -1)).T.flatten() for one in values]
        return PatchNorm(*(tuple(one.tolist()) for one in values))
    scale = float(getattr(config, "scaling_factor", None) or 1.0)
    if (means := getattr(config, "latents_mean", None)) is not None:
        return PerChannel(tuple(map(float, means)), tuple(map(float, config.latents_std)), scale)
    if shift := getattr(config, "shift_factor", None):
        return ShiftAndScale(float(shift), scale)
    return Scale(scale)


def put_places_first(vae: Any, *, name: str) -> None:
    """Mark a VAE of FLUX.2's class whose statistics have all channels of a place in a square together (Ideogram 4).

    FLUX.2's own have the four places of a channel together. The values show the order: the values of a channel are
    nearly the same at all places. Raises DarkroomError for FLUX.2's own; `name` is the user's name for the model.
    """
    setattr(vae, _PLACES_FIRST, True)
    means = vae.bn.running_mean
    if means.is_meta:
        return
    as_ours, as_flux2 = (_spread(means.unflatten(0, (_PLACES, -1)).T), _spread(means.unflatten(0, (-1, _PLACES))))
    if as_flux2 < _MUCH_LESS * as_ours:
        raise DarkroomError(
            f"The VAE of {name} is FLUX.2's, with FLUX.2's statistics of latents.",
            advice="Choose the VAE from Ideogram 4's folder. It has the same weights, but statistics of its own.",
        )


def _spread(means_CP: torch.Tensor) -> float:
    """Return the variance of each channel's values over the places, on average."""
    return float(means_CP.float().var(dim=1).mean())


def encode_mean(vae: Any, images_B3PP: torch.Tensor, *, factor: int, tiling: Tiling = VAE_TILES) -> torch.Tensor:
    """Return the normalised mean latents (B, C, H, W) of images in [-1, 1].

    One image at a time: the last bits of a convolution depend on the batch size, but latents must depend only on their
    image, whether they come from the cache or not. Large images are encoded in tiles.
    """
    first = next(vae.parameters())

    def encode(image_13PP: torch.Tensor) -> torch.Tensor:
        mean: torch.Tensor = vae.encode(image_13PP.to(first.dtype)).latent_dist.mode()
        return mean

    if not _is_tiled(vae, images_B3PP, 1, tiling):
        return norm_of(vae).normalize(torch.cat([encode(image[None]) for image in images_B3PP]))
    latents = [run_in_tiles(encode, image[None], tiling, px_in=1, px_out=factor) for image in images_B3PP]
    return norm_of(vae).normalize(torch.cat(latents).to(first.dtype))


def encode_posterior(vae: Any, images_B3PP: torch.Tensor) -> Posterior:
    """Return the distribution of the latents of images in [-1, 1], with gradients."""
    first = next(vae.parameters())
    distribution = vae.encode(images_B3PP.to(first.dtype)).latent_dist
    return Posterior(distribution.mean.float(), distribution.logvar.float(), norm_of(vae))


def encode_drawn(
    vae: Any, images_B3PP: torch.Tensor, generator: torch.Generator, *, factor: int, tiling: Tiling = VAE_TILES
) -> torch.Tensor:
    """Return normalised latents (B, C, H, W) of images in [-1, 1], drawn from the VAE's distribution.

    The distribution of large images is computed in tiles.
    """
    first = next(vae.parameters())

    def encode(image_B3PP: torch.Tensor) -> torch.Tensor:
        moments: torch.Tensor = vae.encode(image_B3PP.to(first.dtype)).latent_dist.parameters
        return moments

    if not _is_tiled(vae, images_B3PP, 1, tiling):
        moments_BMHW = encode(images_B3PP)
    else:
        moments = [run_in_tiles(encode, image[None], tiling, px_in=1, px_out=factor) for image in images_B3PP]
        moments_BMHW = torch.cat(moments).to(first.dtype)
    latents: torch.Tensor = DiagonalGaussianDistribution(moments_BMHW).sample(generator)
    return norm_of(vae).normalize(latents)


def decode_latents(
    decode: Callable[[torch.Tensor], Any],
    vae: Any,
    latents_BCHW: torch.Tensor,
    *,
    factor: int,
    tiling: Tiling = VAE_TILES,
) -> torch.Tensor:
    """Return the images (B, 3, P, P) of normalised latents, float32 in about [-1, 1].

    Large images are decoded one by one, in tiles; with gradients all are decoded as a whole.
    """
    first = next(vae.parameters())
    plain_BCHW = norm_of(vae).denormalize(latents_BCHW).to(first.dtype)
    if torch.is_grad_enabled() or not _is_tiled(vae, latents_BCHW, factor, tiling):
        images: torch.Tensor = decode(plain_BCHW).sample
        return images.float()
    tiled = [run_in_tiles(lambda z: decode(z).sample, z[None], tiling, px_in=factor, px_out=1) for z in plain_BCHW]
    return torch.cat(tiled)


def _is_tiled(vae: Any, whole_BCHW: torch.Tensor, px: int, tiling: Tiling) -> bool:
    """Return whether inputs are processed in tiles: if they are large enough and the VAE does not pad circularly."""
    height, width = whole_BCHW.shape[-2:]
    return tiling.applies(width * px, height * px) and not is_circular(vae)
