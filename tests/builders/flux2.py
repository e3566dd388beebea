"""A tiny random FLUX.2 dev, written as a diffusers folder: a whole Mistral-Small 3 with its vision tower."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from diffusers import FlowMatchEulerDiscreteScheduler, Flux2Pipeline
from tokenizers import AddedToken, Tokenizer
from transformers import (
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    MistralConfig,
    PixtralVisionConfig,
    PreTrainedTokenizerFast,
)

from tests.builders.flux import SCHEDULER
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
