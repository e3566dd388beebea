"""A small SDXL model with random weights for measuring the loop: SDXL's structure at the demo model's size."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from transformers.models.clip.configuration_clip import CLIPTextConfig
from transformers.models.clip.modeling_clip import CLIPTextModel, CLIPTextModelWithProjection

_WIDTH, _POOLED, _SIZE_WIDTH = 32, 32, 8


def write_toy_sdxl(folder: Path, *, like: Path) -> Path:
    """Write the model as a diffusers folder and return it, with the VAE and the scheduler of the model `like`."""
    torch.manual_seed(0)
    for part in ("vae", "scheduler"):
        shutil.copytree(like / part, folder / part)
    _unet().save_pretrained(folder / "unet")
    CLIPTextModel(_text_config("quick_gelu")).save_pretrained(folder / "text_encoder")
    CLIPTextModelWithProjection(_text_config("gelu")).save_pretrained(folder / "text_encoder_2")
    index = {
        "_class_name": "StableDiffusionXLPipeline",
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "tokenizer_2": ["transformers", "CLIPTokenizer"],
        "scheduler": ["diffusers", "DDIMScheduler"],
        "force_zeros_for_empty_prompt": True,
    }
    (folder / "model_index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")
    return folder


def _unet() -> UNet2DConditionModel:
    return UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(40, 80),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=2 * _WIDTH,
        attention_head_dim=(2, 4),
        transformer_layers_per_block=(1, 2),
        use_linear_projection=True,
        norm_num_groups=8,
        addition_embed_type="text_time",
        addition_time_embed_dim=_SIZE_WIDTH,
        projection_class_embeddings_input_dim=_POOLED + 6 * _SIZE_WIDTH,
    )


def _text_config(activation: str) -> CLIPTextConfig:
    return CLIPTextConfig(
        vocab_size=49408,
        hidden_size=_WIDTH,
        intermediate_size=2 * _WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=77,
        projection_dim=_POOLED,
        hidden_act=activation,
        bos_token_id=49406,
        eos_token_id=49407,
        pad_token_id=49407 if activation == "quick_gelu" else 0,
    )
