"""Tiny random FLUX.1 models, written as diffusers folders with tokenizers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxFillPipeline, FluxKontextPipeline, FluxPipeline
from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel
from safetensors.torch import save_file
from transformers import CLIPTextConfig, CLIPTextModel, T5Tokenizer

from modules.formats.safetensors_io import read_safetensors
from tests.builders.flow_models import FlowModel
from tests.builders.models import write_folder
from tests.builders.pipelines import clip_tokenizer
from tests.builders.t5 import tiny_t5, write_t5_tokenizer
from tests.builders.z_image import tiny_flux_vae

# The numbers of tokens between which the shift grows are those of small images.
SCHEDULER = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "base_image_seq_len": 4,
    "base_shift": 0.5,
    "max_image_seq_len": 64,
    "max_shift": 1.15,
    "num_train_timesteps": 1000,
    "shift": 3.0,
    "use_dynamic_shifting": True,
}
SCHNELL_SCHEDULER = {**SCHEDULER, "shift": 1.0, "use_dynamic_shifting": False}
CLIP_WIDTH = 16


def tiny_transformer(*, guidance_embeds: bool = True, fills: bool = False) -> FluxTransformer2DModel:
    """A transformer with two double and two single blocks."""
    return FluxTransformer2DModel(
        in_channels=384 if fills else 64,
        out_channels=64,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=24,
        pooled_projection_dim=CLIP_WIDTH,
        guidance_embeds=guidance_embeds,
        axes_dims_rope=(4, 6, 6),
    )


def tiny_clip() -> CLIPTextModel:
    """A CLIP text encoder whose pooled state is that of the largest id, as in the published folders."""
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=49408,
            hidden_size=CLIP_WIDTH,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=77,
            bos_token_id=0,
            eos_token_id=2,
            pad_token_id=1,
        )
    )


def write_flux_folder(folder: Path, *, guidance_embeds: bool = True, fills: bool = False, edits: bool = False) -> Path:
    """Write the model: dev, schnell without `guidance_embeds`, Fill, or Kontext."""
    parts = {
        "transformer": lambda: tiny_transformer(guidance_embeds=guidance_embeds, fills=fills),
        "text_encoder": tiny_clip,
        "text_encoder_2": tiny_t5,
        "vae": tiny_flux_vae,
    }
    scheduler, t5 = SCHEDULER if guidance_embeds else SCHNELL_SCHEDULER, ["transformers", "T5TokenizerFast"]
    pipeline = "FluxFillPipeline" if fills else "FluxKontextPipeline" if edits else "FluxPipeline"
    write_folder(folder, pipeline, parts, scheduler, seed=0, tokenizer_2=t5)
    clip_tokenizer().save_pretrained(folder / "tokenizer")
    write_t5_tokenizer(folder / "tokenizer_2")
    return folder


def flux_pipeline(folder: Path, family: Any) -> Any:
    """diffusers' pipeline of a loaded model's parts, with transformers' own tokenizers."""
    kinds = {"inpainting": FluxFillPipeline, "edit": FluxKontextPipeline}
    pipe = kinds.get(family.variant, FluxPipeline)(
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler"),
        vae=family.vae,
        text_encoder=family.modules["text_encoder"],
        tokenizer=clip_tokenizer(),
        text_encoder_2=family.modules["text_encoder_2"],
        tokenizer_2=T5Tokenizer.from_pretrained(folder / "tokenizer_2", local_files_only=True),
        transformer=family.denoiser,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _pipeline_text(pipe: FluxPipeline, prompt: str) -> Mapping[str, torch.Tensor]:
    states, pooled, _ = pipe.encode_prompt([prompt], device="cpu", max_sequence_length=512)
    return {"states": states, "pooled": pooled}


def _pipeline_sample(
    pipe: FluxPipeline, prompt: str, noise_BCHW: torch.Tensor, guidance: float
) -> tuple[torch.Tensor, torch.Tensor]:
    height, width = (8 * side for side in noise_BCHW.shape[-2:])
    packed = pipe._pack_latents(noise_BCHW, *noise_BCHW.shape)
    options = {"guidance_scale": guidance, "num_inference_steps": 4, "height": height, "width": width}
    latents, images = (pipe([prompt], latents=packed, output_type=kind, **options).images for kind in ("latent", "pt"))
    return pipe._unpack_latents(latents, height, width, 8), images


def _in_native_names(lora: Path, folder: Path) -> list[Path]:
    """Write a LoRA as other trainers do: with the native names behind `diffusion_model.`, q, k and v in one matrix."""
    kohya = folder / "kohya.safetensors"  # of the same LoRA
    tensors, metadata = read_safetensors(kohya)
    native = {_native(name): tensor for name, tensor in tensors.items()}
    save_file(native, folder / "native.safetensors", metadata)
    return [folder / "native.safetensors"]


def _native(name: str) -> str:
    layer, _, factor = name.partition(".")
    path = layer.removeprefix("lora_unet_")
    for flat, dotted in (("double_blocks_", "double_blocks."), ("single_blocks_", "single_blocks.")):
        path = path.replace(flat, dotted)
    for word in ("img_attn", "txt_attn", "img_mlp", "txt_mlp", "linear1", "linear2"):
        path = path.replace(f"_{word}", f".{word}").replace(f"{word}_", f"{word}.")
    factor = factor.replace("lora_down", "lora_A").replace("lora_up", "lora_B")
    return f"diffusion_model.{path}.{factor}"


TINY = FlowModel(
    "flux",
    write_flux_folder,
    flux_pipeline,
    _pipeline_text,
    _pipeline_sample,
    other_forms=_in_native_names,
    published_shapes={
        "img_in.weight": (3072, 64),
        "txt_in.weight": (3072, 4096),
        "vector_in.in_layer.weight": (3072, 768),
        "guidance_in.in_layer.weight": (3072, 256),
        "double_blocks.18.img_attn.qkv.weight": (9216, 3072),
        "double_blocks.18.txt_attn.norm.query_norm.scale": (128,),
        "double_blocks.18.txt_mod.lin.weight": (18432, 3072),
        "single_blocks.37.linear1.weight": (21504, 3072),
        "single_blocks.37.linear2.weight": (3072, 15360),
        "final_layer.adaLN_modulation.1.weight": (6144, 3072),
        "final_layer.linear.weight": (64, 3072),
    },
    published_weights=11_901_408_320,
    unread=("kohya", "comfyui", "native"),  # `tests/parity/test_fused_layers_in_diffusers.py` has the published size
    settings={"text_tokens": 64},  # padded to 512 tokens, prompts are most of a small run's work
    untrained=("text_encoder", "text_encoder_2"),
    attends_to_padding=True,
)
