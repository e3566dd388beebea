"""A tiny random Z-Image, written as a diffusers folder with a tokenizer of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, ZImagePipeline
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.transformers.transformer_z_image import ZImageTransformer2DModel
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3Model

from modules.formats.peft_settings import PEFT_SETTINGS
from modules.formats.safetensors_io import read_safetensors
from tests.builders.flow_models import FlowModel
from tests.builders.models import tiny_vae, write_folder

SCHEDULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": 3.0}
PAD = "<|endoftext|>"
# Qwen3's for messages of text: without thinking, the beginning of the answer has an empty thought.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def tiny_transformer() -> ZImageTransformer2DModel:
    """A transformer with one block of each kind of refiner and two of the main ones."""
    return ZImageTransformer2DModel(
        dim=32,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=24,
        axes_dims=[4, 6, 6],
        axes_lens=[1024, 32, 32],
    )


def tiny_qwen() -> Qwen3Model:
    """A decoder with three layers and a vocabulary of bytes."""
    return Qwen3Model(
        Qwen3Config(
            vocab_size=260,
            hidden_size=24,
            intermediate_size=32,
            num_hidden_layers=3,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=12,
            max_position_embeddings=1024,
        )
    )


def tiny_flux_vae() -> AutoencoderKL:
    """A VAE with 16 channels, normalised by a shift and a factor as FLUX.1's."""
    return tiny_vae(
        latent_channels=16, scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False
    )


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer with a token for each byte, in transformers' format."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([PAD, "<|im_start|>", "<|im_end|>"])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": PAD, "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_z_image_folder(folder: Path) -> Path:
    """Write the model."""
    parts = {"transformer": tiny_transformer, "text_encoder": tiny_qwen, "vae": tiny_flux_vae}
    write_folder(folder, "ZImagePipeline", parts, SCHEDULER, seed=0)
    write_tokenizer(folder / "tokenizer")
    return folder


def z_image_pipeline(folder: Path, family: Any) -> ZImagePipeline:
    """diffusers' pipeline of a loaded model's parts, with transformers' own tokenizer."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer", local_files_only=True)
    pipe = ZImagePipeline(
        FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler"),
        family.vae,
        family.modules["text_encoder"],
        tokenizer,
        family.denoiser,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _pipeline_text(pipe: ZImagePipeline, prompt: str) -> Mapping[str, torch.Tensor]:
    states, _ = pipe.encode_prompt([prompt], do_classifier_free_guidance=False, max_sequence_length=512)
    return {"states": states[0][None]}


def _pipeline_sample(
    pipe: ZImagePipeline, prompt: str, noise_BCHW: torch.Tensor, guidance: float
) -> tuple[torch.Tensor, torch.Tensor]:
    height, width = (8 * side for side in noise_BCHW.shape[-2:])
    # The pipeline's scale is what guidance adds: 0 is none.
    options = {"guidance_scale": guidance - 1.0, "num_inference_steps": 4, "height": height, "width": width}
    latents, images = (
        pipe([prompt], latents=noise_BCHW, output_type=kind, **options).images for kind in ("latent", "pt")
    )
    return latents, images


def _in_comfy_names(lora: Path, folder: Path) -> list[Path]:
    """Write a LoRA as other trainers do for ComfyUI, with alphas: `diffusion_model.` and diffusers' names."""
    tensors, metadata = read_safetensors(lora)
    named = {name.replace("transformer.", "diffusion_model.", 1): tensor for name, tensor in tensors.items()}
    alphas = {n.replace("lora_A.weight", "alpha"): torch.tensor(2.0) for n in named if n.endswith("lora_A.weight")}
    kept = {name: text for name, text in metadata.items() if name != PEFT_SETTINGS}
    save_file(named | alphas, folder / "comfy.safetensors", kept)
    return [folder / "comfy.safetensors"]


TINY = FlowModel(
    "z_image",
    write_z_image_folder,
    z_image_pipeline,
    _pipeline_text,
    _pipeline_sample,
    other_forms=_in_comfy_names,
    published_shapes={
        "x_embedder.weight": (3840, 64),
        "cap_embedder.0.weight": (2560,),
        "cap_embedder.1.weight": (3840, 2560),
        "cap_pad_token": (1, 3840),
        "context_refiner.1.attention.out.weight": (3840, 3840),
        "noise_refiner.1.adaLN_modulation.0.weight": (15360, 256),
        "layers.29.attention.qkv.weight": (11520, 3840),
        "layers.29.attention.q_norm.weight": (128,),
        "layers.29.feed_forward.w2.weight": (3840, 10240),
        "final_layer.linear.weight": (64, 3840),
    },
    published_weights=6_154_908_736,
)
