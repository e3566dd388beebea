"""The passes of the parts that families share, with their inputs, for the memory estimate to trace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from modules.families.parts.fused_norms import norms_to_fuse
from modules.families.spec import FamilySpec
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass, rms_norm_of_weights

_NUM_SIZES = 6  # height, width, crop and target size of an image: SDXL's size conditioning
TracedPasses = Mapping[str, TracedPass]
"""The passes of a part: "forward", or "encode" and "decode"."""


@dataclass(frozen=True, slots=True)
class InputSize:
    """The size of a denoiser's inputs: as many prompts as images, with the number of tokens of each prompt.

    `channels`, `height` and `width` are the shape of an image's latents, `patch` is the side of the square of latents
    that is one token. The methods return tensors without values.
    """

    batch: int
    tokens: int
    channels: int
    height: int
    width: int
    patch: int

    @property
    def num_patches(self) -> int:
        """The patches of an image."""
        return (self.height // self.patch) * (self.width // self.patch)

    def latents(self, channels: int) -> torch.Tensor:
        """Return latents (B, C, H, W)."""
        return torch.empty(self.batch, channels, self.height, self.width)

    def patches(self, channels: int) -> torch.Tensor:
        """Return the patches (B, T, C) of images."""
        return torch.empty(self.batch, self.num_patches, channels)

    def text(self, width: int) -> torch.Tensor:
        """Return the states (B, L, D) of prompts."""
        return torch.empty(self.batch, self.tokens, width)

    def mask(self, further: int = 0) -> torch.Tensor:
        """Return a mask (B, L) of the tokens of prompts, and of `further` tokens behind them."""
        return torch.empty(self.batch, self.tokens + further, dtype=torch.bool)

    def times(self) -> torch.Tensor:
        """Return a number for each image (B): times or guidance scales."""
        return torch.empty(self.batch, dtype=torch.float32)


def forward_pass(
    module: Any,
    spec: FamilySpec,
    inputs: Callable[[InputSize], Mapping[str, Any]],
    *,
    text: Collection[str] = ("encoder_hidden_states",),
    is_per_image: bool = False,
) -> TracedPasses:
    """Return the forward pass of a denoiser, with its inputs by name; `text` are those from the text encoders.

    `is_per_image`: it goes through its images one by one (`TracedPass`).
    """

    def inputs_of(size: PassSize) -> Mapping[str, Any]:
        channels, height, width = spec.latents.shape(size.width_px, size.height_px)
        return inputs(InputSize(size.batch, size.tokens, channels, height, width, spec.latents.packed))

    return {"forward": TracedPass(module, inputs_of, frozenset(text), is_per_image)}


def unet_passes(unet: Any, spec: FamilySpec) -> TracedPasses:
    """Return the forward pass of a `UNet2DConditionModel`."""
    config = unet.config

    def inputs(size: InputSize) -> dict[str, Any]:
        made: dict[str, Any] = {
            "sample": size.latents(config.in_channels),
            "timestep": torch.empty(size.batch, dtype=torch.long),
            "encoder_hidden_states": size.text(config.cross_attention_dim),
        }
        if config.addition_embed_type == "text_time":
            of_sizes = _NUM_SIZES * config.addition_time_embed_dim
            pooled = torch.empty(size.batch, config.projection_class_embeddings_input_dim - of_sizes)
            time_ids = torch.empty(size.batch, _NUM_SIZES, dtype=torch.float32)
            made["added_cond_kwargs"] = {"text_embeds": pooled, "time_ids": time_ids}
        return made

    return forward_pass(unet, spec, inputs, text=["encoder_hidden_states", "text_embeds"])


def packed_passes(
    transformer: Any,
    spec: FamilySpec,
    *,
    num_axes: int,
    more: Callable[[InputSize], Mapping[str, torch.Tensor]] = lambda size: {},
) -> TracedPasses:
    """Return the forward pass of a transformer that reads packed latents, as FLUX.1's and its successors do.

    Text and image tokens have positions of `num_axes` numbers. `more(size)` returns further inputs.
    """
    config = transformer.config

    def inputs(size: InputSize) -> dict[str, Any]:
        made = {
            "hidden_states": size.patches(config.in_channels),
            "encoder_hidden_states": size.text(config.joint_attention_dim),
        }
        if pooled_width := config.get("pooled_projection_dim"):
            made["pooled_projections"] = torch.empty(size.batch, pooled_width)
        made |= {
            "timestep": size.times(),
            "img_ids": torch.empty(size.num_patches, num_axes, dtype=torch.float32),
            "txt_ids": torch.empty(size.tokens, num_axes, dtype=torch.float32),
            **more(size),
        }
        if config.get("guidance_embeds"):
            made["guidance"] = size.times()
        return made

    return forward_pass(transformer, spec, inputs, text=["encoder_hidden_states", "pooled_projections"])


def text_passes(encoder: Any, spec: FamilySpec) -> TracedPasses:
    """Return the forward pass of a text encoder of transformers."""

    def inputs(size: PassSize) -> dict[str, Any]:
        return {"input_ids": torch.empty(size.batch, size.tokens, dtype=torch.long)}

    return {"forward": TracedPass(encoder, inputs)}


def vae_passes(vae: Any, spec: FamilySpec) -> TracedPasses:
    """Return the encoding and decoding of an `AutoencoderKL`."""
    config = vae.config
    return autoencoder_passes(
        vae, config.in_channels, config.latent_channels, factor=2 ** (len(config.block_out_channels) - 1)
    )


def autoencoder_passes(vae: Any, image_channels: int, channels: int, *, factor: int) -> TracedPasses:
    """Return the encoding and decoding of an autoencoder: latents have `channels`, and sides smaller by `factor`."""

    def images(size: PassSize) -> dict[str, Any]:
        return {"x": torch.empty(size.batch, image_channels, size.height_px, size.width_px)}

    def latents(size: PassSize) -> dict[str, Any]:
        return {"z": torch.empty(size.batch, channels, size.height_px // factor, size.width_px // factor)}

    def encode(x: torch.Tensor) -> torch.Tensor:
        mean: torch.Tensor = vae.encode(x).latent_dist.mean
        return mean

    def decode(z: torch.Tensor) -> torch.Tensor:
        image: torch.Tensor = vae.decode(z).sample
        return image

    return {"encode": TracedPass(encode, images), "decode": TracedPass(decode, latents)}


# The RMS norms of diffusers' transformers, as the memory estimate traces them.


def keep_norms_whole(module: Any) -> None:
    """Make each RMS norm of a denoiser that is traced one operation, with a result in the dtype of the norm's weights.

    diffusers' class casts only to weights of 16 bits, which no dtype stands for while a pass is traced. How much memory
    the norm itself needs depends on the run (`modules/families/parts/fused_norms.py`).
    """
    for norm in norms_to_fuse(module):
        norm.forward = partial(_normalize, norm)


def _normalize(norm: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    return rms_norm_of_weights(hidden_states, norm.weight)
