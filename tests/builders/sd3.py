"""Tiny random models of Stable Diffusion 3.5 Medium, written as diffusers folders with tokenizers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, StableDiffusion3Pipeline
from diffusers.models.transformers.transformer_sd3 import SD3Transformer2DModel
from safetensors.torch import save_file
from transformers import CLIPTextConfig, CLIPTextModelWithProjection, T5Tokenizer

from modules.formats.safetensors_io import read_safetensors
from tests.builders.flow_models import FlowModel, OneTrainerConfig
from tests.builders.models import tiny_vae, write_folder
from tests.builders.pipelines import clip_tokenizer
from tests.builders.t5 import tiny_t5, write_t5_tokenizer

SCHEDULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": 3.0}
CLIP_WIDTHS = {"text_encoder": 16, "text_encoder_2": 20}
T5_WIDTH = 40  # more than both CLIPs have
T5_TOKENS = 64


def tiny_transformer() -> SD3Transformer2DModel:
    """A transformer with two joint blocks, the first one with a second attention of the image."""
    return SD3Transformer2DModel(
        sample_size=32,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=T5_WIDTH,
        caption_projection_dim=32,
        pooled_projection_dim=sum(CLIP_WIDTHS.values()),
        pos_embed_max_size=48,
        dual_attention_layers=(0,),
        qk_norm="rms_norm",
    )


def tiny_clip(part: str, *, num_positions: int = 77) -> CLIPTextModelWithProjection:
    """CLIP-L with its quick activation, or CLIP-G."""
    return CLIPTextModelWithProjection(
        CLIPTextConfig(
            vocab_size=49408,
            hidden_size=CLIP_WIDTHS[part],
            projection_dim=CLIP_WIDTHS[part],
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=num_positions,
            hidden_act="quick_gelu" if part == "text_encoder" else "gelu",
            bos_token_id=0,
            eos_token_id=2,
            pad_token_id=1,
        )
    )


def write_sd3_folder(folder: Path, *, without: Collection[str] = ()) -> Path:
    """Write the model; `without` are text encoders that it lacks, as diffusers saves such a pipeline."""
    parts = {
        "transformer": tiny_transformer,
        "text_encoder": lambda: tiny_clip("text_encoder"),
        "text_encoder_2": lambda: tiny_clip("text_encoder_2"),
        "text_encoder_3": lambda: tiny_t5(d_model=T5_WIDTH),
        "vae": lambda: tiny_vae(
            latent_channels=16,
            scaling_factor=1.5305,
            shift_factor=0.0609,
            use_quant_conv=False,
            use_post_quant_conv=False,
        ),
    }
    kept = {name: build for name, build in parts.items() if name not in without}
    index: dict[str, Any] = {"tokenizer_3": ["transformers", "T5TokenizerFast"]}
    index |= {name: [None, None] for part in without for name in (part, part.replace("text_encoder", "tokenizer"))}
    write_folder(folder, "StableDiffusion3Pipeline", kept, SCHEDULER, seed=0, **index)
    clip_tokenizer().save_pretrained(folder / "tokenizer")
    clip_tokenizer("!").save_pretrained(folder / "tokenizer_2")
    if "text_encoder_3" not in without:
        write_t5_tokenizer(folder / "tokenizer_3")
    return folder


def sd3_pipeline(folder: Path, family: Any) -> Any:
    """diffusers' pipeline of a loaded model's parts, with transformers' own tokenizers."""
    has_t5 = "text_encoder_3" in family.modules
    pipe = StableDiffusion3Pipeline(
        transformer=family.denoiser,
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler"),
        vae=family.vae,
        text_encoder=family.modules["text_encoder"],
        tokenizer=clip_tokenizer(),
        text_encoder_2=family.modules["text_encoder_2"],
        tokenizer_2=clip_tokenizer("!"),
        text_encoder_3=family.modules.get("text_encoder_3"),
        tokenizer_3=T5Tokenizer.from_pretrained(folder / "tokenizer_3", local_files_only=True) if has_t5 else None,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _pipeline_text(pipe: StableDiffusion3Pipeline, prompt: str) -> Mapping[str, torch.Tensor]:
    states, _, pooled, _ = pipe.encode_prompt([prompt], None, None, device="cpu", do_classifier_free_guidance=False)
    first, second = CLIP_WIDTHS.values()
    return {
        "text_encoder": states[:, :77, :first],
        "text_encoder_2": states[:, :77, first : first + second],
        "text_encoder_3": states[:, 77:],
        "text_encoder_pooled": pooled[:, :first],
        "text_encoder_2_pooled": pooled[:, first:],
    }


def _pipeline_sample(
    pipe: StableDiffusion3Pipeline, prompt: str, noise_BCHW: torch.Tensor, guidance: float
) -> tuple[torch.Tensor, torch.Tensor]:
    height, width = (8 * side for side in noise_BCHW.shape[-2:])
    options = {"guidance_scale": guidance, "num_inference_steps": 4, "height": height, "width": width}
    latents, images = (
        pipe([prompt], latents=noise_BCHW, output_type=kind, **options).images for kind in ("latent", "pt")
    )
    return latents, images


def _in_other_names(lora: Path, folder: Path) -> list[Path]:
    """Write a LoRA as other trainers do: natively with q, k and v in one matrix, and with OneTrainer's prefix."""
    tensors, metadata = read_safetensors(folder / "kohya.safetensors")  # of the same LoRA
    native = {_native(name): tensor for name, tensor in tensors.items()}
    save_file(native, folder / "native.safetensors", metadata)
    tensors, metadata = read_safetensors(lora)  # in diffusers' names
    prefixed = {_prefixed(name): tensor for name, tensor in tensors.items()}
    save_file(prefixed, folder / "onetrainer.safetensors", metadata)
    return [folder / "native.safetensors", folder / "onetrainer.safetensors"]


def _native(name: str) -> str:
    layer, _, factor = name.partition(".")
    path = layer.removeprefix("lora_unet_").replace("joint_blocks_", "joint_blocks.")
    for word in ("x_block", "context_block"):
        path = path.replace(f"_{word}_", f".{word}.")
    for word in ("attn2", "attn", "mlp"):
        path = path.replace(f".{word}_", f".{word}.")
    factor = factor.replace("lora_down", "lora_A").replace("lora_up", "lora_B")
    return f"diffusion_model.{path}.{factor}"


def _prefixed(name: str) -> str:
    layer, _, factor = name.removeprefix("transformer.").partition(".lora_")
    factor = {"A.weight": "lora_down.weight", "B.weight": "lora_up.weight"}[factor]
    return f"lora_transformer_{layer.replace('.', '_')}.{factor}"


SD3_OF_ONETRAINER = {
    "base_model_name": "stabilityai/stable-diffusion-3.5-medium",
    "transformer": {"train": True, "weight_dtype": "BFLOAT_16"},
    "text_encoder": {"train": False, "weight_dtype": "BFLOAT_16", "include": True},
    "text_encoder_2": {"train": False, "weight_dtype": "BFLOAT_16", "dropout_probability": 0.1},
    "text_encoder_3": {"train": False, "weight_dtype": "FLOAT_8", "include": False},
    "text_encoder_3_layer_skip": 0,
    "text_encoder_2_layer_skip": 1,
    "timestep_shift": 3.0,
    "layer_filter": "attn",
    "output_model_format": "SAFETENSORS",
    "samples": [{"prompt": "a disc"}],
}
SD3_VALUES = {
    "model.family": {"name": "sd3", "text_tokens": 77, "clip_skip": 0, "clip_skip_2": 1},
    "parts.text_encoder_3.include": False,
    "parts.text_encoder_3.dtype": "float8",
    "data.caption_dropout": 0.0,
    "data.caption_dropout_2": 0.1,
    "sampling.prompts.0.width_px": 1024,
    "training.noise.shift": 3.0,
}
ONETRAINER = {
    model_type: OneTrainerConfig({"model_type": model_type, **SD3_OF_ONETRAINER}, SD3_VALUES)
    for model_type in ("STABLE_DIFFUSION_3", "STABLE_DIFFUSION_35")
}


TINY = FlowModel(
    "sd3",
    write_sd3_folder,
    sd3_pipeline,
    _pipeline_text,
    _pipeline_sample,
    other_forms=_in_other_names,
    published_shapes={
        "pos_embed": (1, 147456, 1536),
        "x_embedder.proj.weight": (1536, 16, 2, 2),
        "t_embedder.mlp.0.weight": (1536, 256),
        "y_embedder.mlp.0.weight": (1536, 2048),
        "context_embedder.weight": (1536, 4096),
        "joint_blocks.12.x_block.attn2.qkv.weight": (4608, 1536),
        "joint_blocks.12.x_block.adaLN_modulation.1.weight": (13824, 1536),
        "joint_blocks.13.x_block.adaLN_modulation.1.weight": (9216, 1536),
        "joint_blocks.23.context_block.attn.qkv.weight": (4608, 1536),
        "joint_blocks.23.context_block.attn.ln_k.weight": (64,),
        "joint_blocks.23.context_block.adaLN_modulation.1.weight": (3072, 1536),
        "joint_blocks.0.context_block.mlp.fc1.weight": (6144, 1536),
        "final_layer.adaLN_modulation.1.weight": (3072, 1536),
        "final_layer.linear.weight": (64, 1536),
    },
    published_weights=2_469_663_936,
    unread=("kohya", "comfyui", "native", "onetrainer"),
    settings={"text_tokens": T5_TOKENS},
    untrained=("text_encoder", "text_encoder_2", "text_encoder_3"),
    attends_to_padding=True,
    onetrainer=ONETRAINER,
)
