"""Tiny random models of real classes, written as diffusers folders."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel

SCHEDULER = {
    "_class_name": "DDIMScheduler",
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "num_train_timesteps": 1000,
    "clip_sample": False,
    "set_alpha_to_one": False,
    "steps_offset": 1,
    "prediction_type": "epsilon",
}


def tiny_unet() -> UNet2DConditionModel:
    """A UNet with two levels, cross attention on both, and proj_in as a 1x1 convolution, as SD 1.x has it."""
    return UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=24,
        attention_head_dim=2,
        norm_num_groups=8,
    )


def tiny_vae() -> AutoencoderKL:
    """A VAE that shrinks by eight, as SD's does."""
    return AutoencoderKL(
        block_out_channels=(8, 8, 16, 16),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=4,
        sample_size=64,
    )


def tiny_text_encoder(*, hidden_size: int = 24) -> CLIPTextModel:
    """A CLIP text encoder with the real vocabulary and three layers."""
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=49408,
            hidden_size=hidden_size,
            intermediate_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=77,
            bos_token_id=49406,
            eos_token_id=49407,
            pad_token_id=49407,
        )
    )


def write_sd_folder(folder: Path, *, seed: int = 0) -> Path:
    """Write a tiny SD 1.x as a diffusers folder, without a tokenizer: the shipped one serves."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        parts = {"unet": tiny_unet(), "vae": tiny_vae(), "text_encoder": tiny_text_encoder()}
        for part in parts.values():
            _spread_out(part)
    for name, part in parts.items():
        part.save_pretrained(folder / name, safe_serialization=True)
    (folder / "scheduler").mkdir(parents=True, exist_ok=True)
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(SCHEDULER))
    index = {
        "_class_name": "StableDiffusionPipeline",
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "scheduler": ["diffusers", "DDIMScheduler"],
        "safety_checker": [None, None],
        "feature_extractor": [None, None],
    }
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder


def _spread_out(module: torch.nn.Module) -> None:
    """Make text matter: freshly drawn models hardly tell one token from another."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("weight") and parameter.dim() > 1:
                parameter.mul_(2.0)
