"""The normalisation of a model's latents: from the VAE's encoding to the denoiser's input, and back.

Shapes: B batch, C channels of the VAE, H W height and width of its latents. Videos have frames before the height,
(B, C, F, H, W), which noise, targets, losses and the steps of policies take as well. Each model has its own
normalisation; diffusers keeps the constants in the VAE's config, or in its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from modules.system.devices import tensor_on


def for_samples(values_B: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return values (B,) as (B, 1, ...), with as many axes as `like`, so that each multiplies its sample."""
    return values_B.view(-1, *[1] * (like.dim() - 1))


class LatentNorm(Protocol):
    """A normalisation of latents."""

    @property
    def identity(self) -> str:
        """Its kind and its values, for the keys of cached latents."""
        ...

    def normalize(self, encoded_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the denoiser's latents for an encoding of the VAE."""
        ...

    def denormalize(self, latents_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the VAE's encoding for the denoiser's latents."""
        ...


@dataclass(frozen=True, slots=True)
class Scale:
    """One factor (SD, SDXL): z * scale."""

    scale: float

    @property
    def identity(self) -> str:
        """The factor."""
        return f"*{self.scale!r}"

    def normalize(self, encoded_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the latents."""
        return encoded_BCHW * self.scale

    def denormalize(self, latents_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the VAE's encoding."""
        return latents_BCHW / self.scale


@dataclass(frozen=True, slots=True)
class ShiftAndScale:
    """One shift and one factor (SD 3, FLUX.1, Z-Image): (z - shift) * scale."""

    shift: float
    scale: float

    @property
    def identity(self) -> str:
        """The shift and the factor."""
        return f"-{self.shift!r}*{self.scale!r}"

    def normalize(self, encoded_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the latents."""
        return (encoded_BCHW - self.shift) * self.scale

    def denormalize(self, latents_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the VAE's encoding."""
        return latents_BCHW / self.scale + self.shift


@dataclass(frozen=True, slots=True)
class PerChannel:
    """A mean and a deviation for each channel (Qwen-Image), and a factor: (z - mean) * scale / deviation."""

    means: tuple[float, ...]
    deviations: tuple[float, ...]
    scale: float = 1.0

    @property
    def identity(self) -> str:
        """All constants."""
        return f"-{self.means!r}/{self.deviations!r}*{self.scale!r}"

    def normalize(self, encoded_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the latents."""
        means_1C11, deviations_1C11 = _columns(encoded_BCHW, self.means, self.deviations)
        return (encoded_BCHW - means_1C11) * self.scale / deviations_1C11

    def denormalize(self, latents_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the VAE's encoding."""
        means_1C11, deviations_1C11 = _columns(latents_BCHW, self.means, self.deviations)
        return latents_BCHW * deviations_1C11 / self.scale + means_1C11


@dataclass(frozen=True, slots=True)
class PatchNorm:
    """Means and deviations of a batch norm over patches of 2x2 as channels (FLUX.2): one for each place in a patch.

    The latents have the shape of the encoding, (B, C, H, W), as masks and losses need them; the denoiser's tokens are
    the patches again.
    """

    means: tuple[float, ...]
    deviations: tuple[float, ...]

    @property
    def identity(self) -> str:
        """All constants."""
        return f"patches-{self.means!r}/{self.deviations!r}"

    def normalize(self, encoded_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the latents. Raises RuntimeError if a side is odd."""
        patches = patches_to_channels(encoded_BCHW)
        means_1C11, deviations_1C11 = _columns(patches, self.means, self.deviations)
        return channels_to_patches((patches - means_1C11) / deviations_1C11)

    def denormalize(self, latents_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the VAE's encoding. Raises RuntimeError if a side is odd."""
        patches = patches_to_channels(latents_BCHW)
        means_1C11, deviations_1C11 = _columns(patches, self.means, self.deviations)
        return channels_to_patches(patches * deviations_1C11 + means_1C11)


def patches_to_channels(values_BCHW: torch.Tensor) -> torch.Tensor:
    """Return values (B, C, H, W) as (B, 4C, H / 2, W / 2): channel 4c + 2i + j is the value in row i, column j of c.

    As diffusers' `Flux2Pipeline._patchify_latents`. Raises RuntimeError if a side is odd.
    """
    return torch.pixel_unshuffle(values_BCHW, 2)


def channels_to_patches(values_BCHW: torch.Tensor) -> torch.Tensor:
    """Return values (B, 4C, H, W) as (B, C, 2H, 2W): the inverse of `patches_to_channels`."""
    return torch.pixel_shuffle(values_BCHW, 2)


def _columns(like_BCHW: torch.Tensor, *constants: Sequence[float]) -> list[torch.Tensor]:
    """Return constants of channels as tensors (1, C, 1, 1) with the device and dtype of others."""
    shape = (1, -1, *[1] * (like_BCHW.dim() - 2))
    return [tensor_on(c, like_BCHW.device, like_BCHW.dtype).view(shape) for c in constants]
