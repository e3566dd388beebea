"""Tiny SD 2.x and SDXL models: their structure, activations and predictions, at toy size."""

from __future__ import annotations

from pathlib import Path

from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from tests.builders.models import SCHEDULER, tiny_text_encoder, tiny_vae, write_folder

SD2_WIDTH = 32
CLIP_WIDTH, OPEN_CLIP_WIDTH, POOLED_WIDTH = 24, 16, 20
SIZE_WIDTH = 8

V_SCHEDULER = {**SCHEDULER, "prediction_type": "v_prediction"}
ZERO_SNR_SCHEDULER = {**V_SCHEDULER, "rescale_betas_zero_snr": True}


def open_clip_config(width: int) -> CLIPTextConfig:
    """An OpenCLIP text encoder: plain GELU, padding with zeros, the real vocabulary, three layers."""
    return CLIPTextConfig(
        vocab_size=49408,
        hidden_size=width,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=77,
        projection_dim=POOLED_WIDTH,
        hidden_act="gelu",
        bos_token_id=49406,
        eos_token_id=49407,
        pad_token_id=0,
    )


def tiny_sd2_unet() -> UNet2DConditionModel:
    """A UNet as in SD 2.x: linear projections around its attention, the number of heads per level."""
    return UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=SD2_WIDTH,
        attention_head_dim=(2, 4),
        use_linear_projection=True,
        norm_num_groups=8,
    )


def tiny_sdxl_unet() -> UNet2DConditionModel:
    """A UNet as in SDXL: no attention on the first level, deeper on the next, conditioned on text and sizes."""
    return UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=CLIP_WIDTH + OPEN_CLIP_WIDTH,
        attention_head_dim=(2, 4),
        transformer_layers_per_block=(1, 2),
        use_linear_projection=True,
        norm_num_groups=8,
        addition_embed_type="text_time",
        addition_time_embed_dim=SIZE_WIDTH,
        projection_class_embeddings_input_dim=POOLED_WIDTH + 6 * SIZE_WIDTH,
    )


def tiny_sdxl_vae() -> AutoencoderKL:
    """A VAE with SDXL's scaling factor, whose config marks it as overflowing in float16."""
    return tiny_vae(scaling_factor=0.13025, force_upcast=True)


def write_sd2_folder(folder: Path, *, seed: int = 0, prediction: str = "v_prediction") -> Path:
    """Write a tiny SD 2.x as a diffusers folder, without a tokenizer."""
    parts = {
        "unet": tiny_sd2_unet,
        "vae": tiny_vae,
        "text_encoder": lambda: CLIPTextModel(open_clip_config(SD2_WIDTH)),
    }
    scheduler = {**SCHEDULER, "prediction_type": prediction}
    return write_folder(folder, "StableDiffusionPipeline", parts, scheduler, seed=seed)


def write_sdxl_folder(folder: Path, *, seed: int = 0, zero_snr: bool = False) -> Path:
    """Write a tiny SDXL as a diffusers folder, without tokenizers; with `zero_snr` one with v-prediction."""
    parts = {
        "unet": tiny_sdxl_unet,
        "vae": tiny_sdxl_vae,
        "text_encoder": lambda: tiny_text_encoder(hidden_size=CLIP_WIDTH),
        "text_encoder_2": lambda: CLIPTextModelWithProjection(open_clip_config(OPEN_CLIP_WIDTH)),
    }
    scheduler = ZERO_SNR_SCHEDULER if zero_snr else SCHEDULER
    return write_folder(
        folder, "StableDiffusionXLPipeline", parts, scheduler, seed=seed, force_zeros_for_empty_prompt=True
    )
