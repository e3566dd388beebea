"""Qwen-Image 2.1 (Qwen, 2026): rectified flow in one transformer over the tokens of text and image.

A Qwen3-VL of 8 billion weights reads the prompts. The autoencoder has 64 channels for each square of 16 x 16 px, which
is one token, and images with transparency, which is not trained here.
"""

from dataclasses import replace
from typing import Literal

from modules.diffusion.flow_convention import FlowConvention, TokenShift, flow_matching
from modules.families.distilled import DistilledSpec
from modules.families.model_class import ModelClass
from modules.families.parts.language_models import QWEN3_VL, chat_parts, chat_prompts
from modules.families.parts.part_classes import block_presets
from modules.families.settings import FamilySettings
from modules.families.spec import FamilySpec, LatentSpec


class QwenImage21Settings(FamilySettings):
    """7 billion weights; needs no guidance, and draws text in images well."""

    name: Literal["qwen_image21"] = "qwen_image21"


_HOME = "modules.families.qwen_image21"
_CLASSES = "diffusers.models.transformers.transformer_qwenimage21"
_AUTOENCODER = "diffusers.models.autoencoders.autoencoder_kl_qwenimage21"
MAX_TOKENS = 2048
"""The tokens that are read of a prompt. `QwenImage21Pipeline` has no limit."""
_USUAL_TOKENS = 512

TRANSFORMER = ModelClass(
    f"{_HOME}.transformer:QwenImage21Transformer2DModel",
    (f"{_CLASSES}:QwenImage21TransformerBlock",),
    f"{_HOME}.model:transformer_passes",
    attention="modules.families.parts.attention_processor:set_backend",
    layers=block_presets(r"^transformer_blocks\.\d+\.", "attn", "img_mlp"),
    # The embeddings of time, text and image, the modulation of all blocks, and the output: small, and sensitive.
    never_quantized=frozenset({"time_text_embed", "txt_in", "img_in", "modulation", "norm_out", "^proj_out"}),
    masks_padding=True,
    library="diffusers",
    overflows_in_float16=True,  # diffusers' class clips the states of float16
    work=3.5,
)
VAE = ModelClass(
    f"{_HOME}.autoencoder:AutoencoderKLQwenImage21",
    (f"{_AUTOENCODER}:QwenImage21AttentionBlock",),
    f"{_HOME}.autoencoder:vae_passes",
    (f"{_AUTOENCODER}:QwenImage21ResidualBlock",),
    library="diffusers",
)
QWEN_IMAGE21 = FamilySpec(
    name="qwen_image21",
    label="Qwen-Image 2.1",
    settings=QwenImage21Settings,
    parts=chat_parts(TRANSFORMER, QWEN3_VL, VAE, reader="Qwen3-VL", tokenizer="processor"),
    size_step_px=32,
    latents=LatentSpec(channels=64, factor=16),
    text=replace(chat_prompts(MAX_TOKENS, "context_in_dim"), usual_tokens=_USUAL_TOKENS),
    process=flow_matching(FlowConvention(shift=TokenShift(max_tokens=8192, max_shift=0.9))),
    sample_guidance=1.0,
    distilled=DistilledSpec(
        ("lightning", "turbo", "distill", "distilled"),
        "Train on Qwen-Image 2.1, and use the result with the distilled one; both have the same layers. Training a "
        "distilled model directly undoes its distillation: its samples will need more steps.",
    ),
    adapter_form="comfyui",
    released="2026-09",
    is_for_research=True,
)
