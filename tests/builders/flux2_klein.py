"""A tiny random FLUX.2 klein, written as a diffusers folder with a tokenizer of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLFlux2, FlowMatchEulerDiscreteScheduler, Flux2KleinPipeline
from diffusers.models.transformers.transformer_flux2 import Flux2Transformer2DModel
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from tests.builders.flow_models import FlowModel, OneTrainerConfig
from tests.builders.flux import SCHEDULER
from tests.builders.flux import TINY as FLUX
from tests.builders.models import write_folder
from tests.builders.z_image import write_tokenizer

_LAYERS = 28  # one more than are read
_TEXT_WIDTH = 8


def tiny_transformer(*, guidance_embeds: bool = False, text_width: int = _TEXT_WIDTH) -> Flux2Transformer2DModel:
    """A transformer with a double and two single blocks."""
    return Flux2Transformer2DModel(
        in_channels=128,
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=3 * text_width,
        timestep_guidance_channels=16,
        axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds=guidance_embeds,
    )


def tiny_qwen() -> Qwen3ForCausalLM:
    """A language model with a vocabulary of bytes."""
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=260,
            hidden_size=_TEXT_WIDTH,
            intermediate_size=8,
            num_hidden_layers=_LAYERS,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=8,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
        )
    )


def tiny_flux2_vae() -> AutoencoderKLFlux2:
    """A VAE with 32 channels, and statistics of its latents' patches that are not those of a new one."""
    vae = AutoencoderKLFlux2(
        block_out_channels=(8, 8, 16, 16), layers_per_block=1, norm_num_groups=4, latent_channels=32, sample_size=64
    )
    vae.bn.running_mean.copy_(torch.linspace(-0.5, 0.5, 128))
    vae.bn.running_var.copy_(torch.linspace(0.5, 2.0, 128))
    return vae


def write_flux2_klein_folder(folder: Path, *, is_distilled: bool = False) -> Path:
    """Write the model."""
    parts = {"transformer": tiny_transformer, "text_encoder": tiny_qwen, "vae": tiny_flux2_vae}
    index = {"tokenizer": ["transformers", "Qwen2TokenizerFast"], "is_distilled": is_distilled}
    write_folder(folder, "Flux2KleinPipeline", parts, SCHEDULER, seed=0, **index)
    write_tokenizer(folder / "tokenizer")
    return folder


def flux2_klein_pipeline(folder: Path, family: Any) -> Flux2KleinPipeline:
    """diffusers' pipeline of a loaded model's parts, with transformers' own tokenizer."""
    pipe = Flux2KleinPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler"),
        vae=family.vae,
        text_encoder=family.modules["text_encoder"],
        tokenizer=PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer", local_files_only=True),
        transformer=family.denoiser,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _pipeline_text(pipe: Flux2KleinPipeline, prompt: str) -> Mapping[str, torch.Tensor]:
    return {"states": pipe.encode_prompt([prompt], device="cpu")[0]}


def _pipeline_sample(
    pipe: Any, prompt: str, noise_BCHW: torch.Tensor, guidance: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The normalised latents, without patches, and images of the pipeline."""
    height, width = (8 * side for side in noise_BCHW.shape[-2:])
    options = {"guidance_scale": guidance, "num_inference_steps": 4, "height": height, "width": width}
    patches = pipe._patchify_latents(noise_BCHW)
    latents, images = (
        pipe(prompt=prompt, latents=patches, output_type=kind, **options).images for kind in ("latent", "pt")
    )
    bn = pipe.vae.bn
    deviations = torch.sqrt(bn.running_var + pipe.vae.config.batch_norm_eps).view(1, -1, 1, 1)
    normed = (pipe._patchify_latents(latents) - bn.running_mean.view(1, -1, 1, 1)) / deviations
    return pipe._unpatchify_latents(normed), images


ONETRAINER = {
    "16 GB": OneTrainerConfig(
        {
            "model_type": "FLUX_2",
            "base_model_name": "black-forest-labs/FLUX.2-klein-base-9B",
            "learning_rate": 3e-5,
            "transformer": {"train": True, "weight_dtype": "FLOAT_8", "guidance_scale": 1.0},
            "dynamic_timestep_shifting": True,
            "text_encoder_sequence_length": 128,
            "layer_filter": "transformer_block",
            "layer_filter_preset": "blocks",
            "quantization": {"layer_filter": "transformer_block", "layer_filter_preset": "blocks"},
        },
        {
            "model.family.text_tokens": 128,
            "training.noise.dynamic_shift": True,
            "parts.transformer.dtype": "float8",
            "adapter.layers": "custom",
            "adapter.custom_layers": "transformer_block",
        },
    )
}


TINY = FlowModel(
    "flux2_klein",
    write_flux2_klein_folder,
    flux2_klein_pipeline,
    _pipeline_text,
    _pipeline_sample,
    other_forms=FLUX.other_forms,
    published_shapes={
        "img_in.weight": (3072, 128),
        "txt_in.weight": (3072, 7680),
        "time_in.in_layer.weight": (3072, 256),
        "double_stream_modulation_img.lin.weight": (18432, 3072),
        "single_stream_modulation.lin.weight": (9216, 3072),
        "double_blocks.4.img_attn.qkv.weight": (9216, 3072),
        "double_blocks.4.img_attn.proj.weight": (3072, 3072),
        "double_blocks.4.txt_attn.norm.query_norm.scale": (128,),
        "double_blocks.4.txt_mlp.0.weight": (18432, 3072),
        "double_blocks.4.txt_mlp.2.weight": (3072, 9216),
        "single_blocks.19.linear1.weight": (27648, 3072),
        "single_blocks.19.linear2.weight": (3072, 12288),
        "final_layer.adaLN_modulation.1.weight": (6144, 3072),
        "final_layer.linear.weight": (128, 3072),
    },
    published_weights=3_875_544_576,
    unread=("comfyui", "native"),  # with alphas: diffusers raises an error
    settings={"text_tokens": 96},  # padded to 512 tokens, prompts are most of a small run's work
    attends_to_padding=True,
    onetrainer=ONETRAINER,
)
