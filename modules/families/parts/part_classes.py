"""The classes of the parts that families share, as "module:Class". Torch-free: they are imported on loading."""

from __future__ import annotations

UNET = "diffusers.models.unets.unet_2d_condition:UNet2DConditionModel"
KL_VAE = "diffusers.models.autoencoders.autoencoder_kl:AutoencoderKL"
CLIP_TEXT = "transformers.models.clip.modeling_clip:CLIPTextModel"
CLIP_TEXT_WITH_PROJECTION = "transformers.models.clip.modeling_clip:CLIPTextModelWithProjection"

CLIP_CHUNK_TOKENS = 75
"""The tokens of a prompt that CLIP's text encoders read at once, between a start and an end token."""
