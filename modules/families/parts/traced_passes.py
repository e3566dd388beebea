"""The passes of the parts that families share, with their inputs, for the memory estimate to trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from modules.families.parts.fused_norms import norms_to_fuse
from modules.families.spec import FamilySpec
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass, rms_norm_of_weights

_NUM_SIZES = 6  # height, width, crop and target size of an image: SDXL's size conditioning


def unet_passes(unet: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the forward pass of a `UNet2DConditionModel`."""
    config = unet.config

    def inputs(size: PassSize) -> dict[str, Any]:
        factor = spec.latents.factor
        sides = (size.height_px // factor, size.width_px // factor)
        made: dict[str, Any] = {
            "sample": torch.empty(size.batch, config.in_channels, *sides),
            "timestep": torch.empty(size.batch, dtype=torch.long),
            "encoder_hidden_states": torch.empty(size.batch, size.tokens, config.cross_attention_dim),
        }
        if config.addition_embed_type == "text_time":
            of_sizes = _NUM_SIZES * config.addition_time_embed_dim
            pooled = torch.empty(size.batch, config.projection_class_embeddings_input_dim - of_sizes)
            time_ids = torch.empty(size.batch, _NUM_SIZES, dtype=torch.float32)
            made["added_cond_kwargs"] = {"text_embeds": pooled, "time_ids": time_ids}
        return made

    return {"forward": TracedPass(unet, inputs, frozenset({"encoder_hidden_states", "text_embeds"}))}


def packed_passes(
    transformer: Any,
    spec: FamilySpec,
    *,
    num_axes: int,
    more: Callable[[PassSize, int], Mapping[str, torch.Tensor]] = lambda size, num_patches: {},
) -> Mapping[str, TracedPass]:
    """Return the forward pass of a transformer that reads packed latents, as FLUX.1's and its successors do.

    Text and image tokens have positions of `num_axes` numbers. `more(size, num_patches)` returns further inputs.
    """
    config, patch = transformer.config, spec.latents.packed

    def inputs(size: PassSize) -> dict[str, Any]:
        _, height, width = spec.latents.shape(size.width_px, size.height_px)
        num_patches = (height // patch) * (width // patch)
        made = {
            "hidden_states": torch.empty(size.batch, num_patches, config.in_channels),
            "encoder_hidden_states": torch.empty(size.batch, size.tokens, config.joint_attention_dim),
        }
        if pooled_width := config.get("pooled_projection_dim"):
            made["pooled_projections"] = torch.empty(size.batch, pooled_width)
        made |= {
            "timestep": torch.empty(size.batch, dtype=torch.float32),
            "img_ids": torch.empty(num_patches, num_axes, dtype=torch.float32),
            "txt_ids": torch.empty(size.tokens, num_axes, dtype=torch.float32),
            **more(size, num_patches),
        }
        if config.get("guidance_embeds"):
            made["guidance"] = torch.empty(size.batch, dtype=torch.float32)
        return made

    return {"forward": TracedPass(transformer, inputs, frozenset({"encoder_hidden_states", "pooled_projections"}))}


def text_passes(encoder: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the forward pass of a text encoder of transformers."""

    def inputs(size: PassSize) -> dict[str, Any]:
        return {"input_ids": torch.empty(size.batch, size.tokens, dtype=torch.long)}

    return {"forward": TracedPass(encoder, inputs)}


def vae_passes(vae: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the encoding and decoding of an `AutoencoderKL`."""
    config = vae.config
    return autoencoder_passes(
        vae, config.in_channels, config.latent_channels, factor=2 ** (len(config.block_out_channels) - 1)
    )


def autoencoder_passes(vae: Any, image_channels: int, channels: int, *, factor: int) -> Mapping[str, TracedPass]:
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
