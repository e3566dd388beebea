"""A tiny random FLUX.2 dev, written as a diffusers folder: a whole Mistral-Small 3 with its vision tower."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, Flux2Pipeline
from tokenizers import AddedToken, Tokenizer
from transformers import (
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    MistralConfig,
    PixtralVisionConfig,
    PreTrainedTokenizerFast,
)

from tests.builders.flow_models import FlowModel
from tests.builders.flux import SCHEDULER
from tests.builders.flux import TINY as FLUX
from tests.builders.flux2_klein import tiny_flux2_vae, tiny_transformer
from tests.builders.models import write_folder
from tests.builders.z_image import write_tokenizer

_TEXT_WIDTH = 8
_SPECIAL = ("<pad>", "<s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[IMG]")
# Mistral's for one message of the system and one of the user, whose contents are lists of texts.
_CHAT_TEMPLATE = (
    "<s>{% for message in messages %}{% if message.role == 'system' %}[SYSTEM_PROMPT]{% for c in message.content %}"
    "{{ c.text }}{% endfor %}[/SYSTEM_PROMPT]{% else %}[INST]{% for c in message.content %}{{ c.text }}{% endfor %}"
    "[/INST]{% endif %}{% endfor %}"
)


def tiny_mistral() -> Mistral3ForConditionalGeneration:
    """A language model with one layer more than are read, and a vision tower."""
    text = MistralConfig(
        vocab_size=280,
        hidden_size=_TEXT_WIDTH,
        intermediate_size=8,
        num_hidden_layers=31,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=1024,
        sliding_window=None,
    )
    vision = PixtralVisionConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=28, patch_size=14
    )
    return Mistral3ForConditionalGeneration(Mistral3Config(text_config=text, vision_config=vision))


def write_flux2_folder(folder: Path) -> Path:
    """Write the model."""
    parts = {
        "transformer": lambda: tiny_transformer(guidance_embeds=True, text_width=_TEXT_WIDTH),
        "text_encoder": tiny_mistral,
        "vae": tiny_flux2_vae,
    }
    write_folder(folder, "Flux2Pipeline", parts, SCHEDULER, seed=0, tokenizer=["transformers", "PixtralProcessor"])
    write_tokenizer(folder / "tokenizer")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL])
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "padding_side": "left"}
    config |= {"chat_template": _CHAT_TEMPLATE}
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def flux2_pipeline(folder: Path, family: Any) -> Flux2Pipeline:
    """diffusers' pipeline with the whole text encoder, and the other parts of a loaded model."""
    pipe = Flux2Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler"),
        vae=family.vae,
        text_encoder=Mistral3ForConditionalGeneration.from_pretrained(folder / "text_encoder").eval(),
        tokenizer=PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer", local_files_only=True),
        transformer=family.denoiser,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _pipeline_text(pipe: Flux2Pipeline, prompt: str) -> Mapping[str, torch.Tensor]:
    return {"states": pipe.encode_prompt([prompt], device="cpu")[0]}


def _pipeline_sample(
    pipe: Flux2Pipeline, prompt: str, noise_BCHW: torch.Tensor, guidance: float
) -> tuple[torch.Tensor, torch.Tensor]:
    height, width = (8 * side for side in noise_BCHW.shape[-2:])
    options = {"guidance_scale": guidance, "num_inference_steps": 4, "height": height, "width": width}
    patches = torch.pixel_unshuffle(noise_BCHW, 2)
    tokens, images = (
        pipe(prompt=prompt, latents=patches, output_type=kind, **options).images for kind in ("latent", "pt")
    )
    return torch.pixel_shuffle(tokens.transpose(1, 2).unflatten(2, patches.shape[-2:]), 2), images


TINY = FlowModel(
    "flux2",
    write_flux2_folder,
    flux2_pipeline,
    _pipeline_text,
    _pipeline_sample,
    guidances=(1.0, 4.0),
    other_forms=FLUX.other_forms,
    published_shapes={
        "img_in.weight": (6144, 128),
        "txt_in.weight": (6144, 15360),
        "time_in.in_layer.weight": (6144, 256),
        "guidance_in.in_layer.weight": (6144, 256),
        "double_stream_modulation_img.lin.weight": (36864, 6144),
        "single_stream_modulation.lin.weight": (18432, 6144),
        "double_blocks.7.img_attn.qkv.weight": (18432, 6144),
        "double_blocks.7.txt_attn.norm.query_norm.scale": (128,),
        "double_blocks.7.txt_mlp.0.weight": (36864, 6144),
        "double_blocks.7.txt_mlp.2.weight": (6144, 18432),
        "single_blocks.47.linear1.weight": (55296, 6144),
        "single_blocks.47.linear2.weight": (6144, 24576),
        "final_layer.adaLN_modulation.1.weight": (12288, 6144),
        "final_layer.linear.weight": (128, 6144),
    },
    published_weights=32_223_281_152,
    unread=("comfyui", "native"),  # with alphas: diffusers raises an error
    settings={"text_tokens": 256},  # of which the message of the system has most, in the vocabulary of bytes
    attends_to_padding=True,
)
