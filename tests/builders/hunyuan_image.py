"""A tiny random HunyuanImage 2.1, written as a diffusers folder with tokenizers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLHunyuanImage, FlowMatchEulerDiscreteScheduler, HunyuanImagePipeline
from diffusers.guiders import AdaptiveProjectedMixGuidance
from diffusers.models.transformers.transformer_hunyuanimage import HunyuanImageTransformer2DModel
from transformers import (
    ByT5Tokenizer,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    T5Config,
    T5EncoderModel,
)

from tests.builders.flow_models import FlowModel
from tests.builders.models import write_folder
from tests.builders.qwen_image import tiny_qwen_vl, write_tokenizer

SCHEDULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": 5.0}
_TEXT_WIDTH, _GLYPH_WIDTH = 32, 20
_GUIDER = ["diffusers", "AdaptiveProjectedMixGuidance"]


def tiny_transformer(*, use_meanflow: bool = False) -> HunyuanImageTransformer2DModel:
    """A transformer with two double and two single blocks, and one that refines the text."""
    return HunyuanImageTransformer2DModel(
        num_layers=2,
        num_single_layers=2,
        num_refiner_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        text_embed_dim=_TEXT_WIDTH,
        text_embed_2_dim=_GLYPH_WIDTH,
        rope_axes_dim=(8, 8),
        guidance_embeds=use_meanflow,
        use_meanflow=use_meanflow,
    )


def tiny_byt5() -> T5EncoderModel:
    """An encoder of bytes with two gated layers."""
    return T5EncoderModel(
        T5Config(
            vocab_size=384,
            d_model=_GLYPH_WIDTH,
            d_kv=4,
            num_heads=4,
            d_ff=32,
            num_layers=2,
            feed_forward_proj="gated-gelu",
            tie_word_embeddings=False,
        )
    )


def tiny_image_vae() -> AutoencoderKLHunyuanImage:
    """An autoencoder of 64 latent channels and a factor of 32."""
    vae = AutoencoderKLHunyuanImage(
        in_channels=3,
        out_channels=3,
        latent_channels=64,
        block_out_channels=(64, 32, 32, 32, 32, 128),
        layers_per_block=1,
        spatial_compression_ratio=32,
        sample_size=384,
        scaling_factor=0.75289,
    )
    with torch.no_grad():
        vae.decoder.conv_out.weight.mul_(2.0)  # the norm before it leaves few differences between images
    return vae


def write_hunyuan_image_folder(folder: Path, *, use_meanflow: bool = False) -> Path:
    """Write the model; the distilled one reads the next noise level, too."""
    parts = {
        "transformer": lambda: tiny_transformer(use_meanflow=use_meanflow),
        "text_encoder": lambda: tiny_qwen_vl(num_layers=4),
        "text_encoder_2": tiny_byt5,
        "vae": tiny_image_vae,
    }
    index: dict[str, Any] = {
        "tokenizer": ["transformers", "Qwen2Tokenizer"],
        "tokenizer_2": ["transformers", "ByT5Tokenizer"],
        "guider": _GUIDER,
    }
    write_folder(folder, "HunyuanImagePipeline", parts, SCHEDULER, seed=0, **index)
    write_tokenizer(folder / "tokenizer")
    ByT5Tokenizer().save_pretrained(folder / "tokenizer_2")
    (folder / "guider").mkdir()
    (folder / "guider" / "guider_config.json").write_text(json.dumps({"_class_name": _GUIDER[1]}))
    return folder


def hunyuan_image_pipeline(folder: Path, family: Any) -> HunyuanImagePipeline:
    """diffusers' pipeline of a loaded model's parts, with transformers' own tokenizers and text encoders."""
    encoder = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder / "text_encoder", local_files_only=True)
    pipe = HunyuanImagePipeline(
        FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler"),
        family.vae,
        encoder.eval(),
        Qwen2Tokenizer.from_pretrained(folder / "tokenizer", local_files_only=True),
        family.modules["text_encoder_2"],
        ByT5Tokenizer.from_pretrained(folder / "tokenizer_2", local_files_only=True),
        family.denoiser,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def pipeline_text(pipe: HunyuanImagePipeline, prompt: str) -> Mapping[str, torch.Tensor]:
    """The states of a prompt's own tokens: the pipeline has those of the padding, too, with masks."""
    states, mask, glyphs, glyph_mask = pipe.encode_prompt([prompt], device="cpu")
    text = {"states": states[:, mask[0].bool()]}
    return {**text, "glyphs_states": glyphs[:, glyph_mask[0].bool()]} if glyph_mask.any() else text


def _pipeline_sample(
    pipe: HunyuanImagePipeline, prompt: str, noise_BCHW: torch.Tensor, guidance: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """A sample with classifier-free guidance in each of its steps."""
    height, width = (32 * side for side in noise_BCHW.shape[-2:])
    pipe.guider = AdaptiveProjectedMixGuidance(guidance, adaptive_projected_guidance_start_step=99)
    options = {"negative_prompt": [""], "num_inference_steps": 4, "height": height, "width": width}
    latents, image = (pipe([prompt], latents=noise_BCHW, output_type=k, **options).images for k in ("latent", "pt"))
    return latents, image


TINY = FlowModel(
    "hunyuan_image",
    write_hunyuan_image_folder,
    hunyuan_image_pipeline,
    pipeline_text,
    _pipeline_sample,
    published_shapes={
        "img_in.proj.weight": (3584, 64, 1, 1),
        "byt5_in.layernorm.weight": (1472,),
        "byt5_in.fc1.weight": (2048, 1472),
        "byt5_in.fc3.weight": (3584, 2048),
        "txt_in.input_embedder.weight": (3584, 3584),
        "txt_in.t_embedder.mlp.0.weight": (3584, 256),
        "txt_in.individual_token_refiner.blocks.1.self_attn_qkv.weight": (10752, 3584),
        "txt_in.individual_token_refiner.blocks.1.mlp.fc1.weight": (14336, 3584),
        "txt_in.individual_token_refiner.blocks.1.adaLN_modulation.1.weight": (7168, 3584),
        "time_in.mlp.0.weight": (3584, 256),
        "double_blocks.19.img_mod.linear.weight": (21504, 3584),
        "double_blocks.19.img_attn_qkv.weight": (10752, 3584),
        "double_blocks.19.img_attn_q_norm.weight": (128,),
        "double_blocks.19.txt_attn_proj.weight": (3584, 3584),
        "double_blocks.19.txt_mlp.fc2.weight": (3584, 14336),
        "single_blocks.39.linear1.weight": (25088, 3584),
        "single_blocks.39.linear2.weight": (3584, 17920),
        "single_blocks.39.k_norm.weight": (128,),
        "single_blocks.39.modulation.linear.weight": (10752, 3584),
        "final_layer.adaLN_modulation.1.weight": (7168, 3584),
        "final_layer.linear.weight": (64, 3584),
    },
    published_weights=17_425_795_520,
)
