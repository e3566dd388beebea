"""A tiny random Z-Image, written as a diffusers folder with a tokenizer of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from diffusers import FlowMatchEulerDiscreteScheduler, ZImagePipeline
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.transformers.transformer_z_image import ZImageTransformer2DModel
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3Model

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
