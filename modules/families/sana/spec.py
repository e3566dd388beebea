"""Sana (Xie et al. 2024, arXiv 2410.10629) and Sana 1.5: rectified flow in a transformer with linear attention.

Its autoencoder covers 32 x 32 px with one latent of 32 channels, so that an image of 1024 px has 1,024 tokens. Gemma 2
reads the prompts after an instruction. Sana Sprint, which was distilled for a few steps, is another model.
"""

from dataclasses import replace
from typing import Literal

from modules.diffusion.flow_convention import ConstantShift, FlowConvention, flow_matching
from modules.families.model_class import ModelClass
from modules.families.parts.language_models import GEMMA2, chat_parts, chat_prompts
from modules.families.parts.part_classes import block_presets
from modules.families.settings import FamilySettings
from modules.families.spec import FamilySpec, LatentSpec

MAX_TOKENS = 300
"""The number of states of a prompt that the transformer reads, including the start token's (`SanaPipeline`)."""


class SanaSettings(FamilySettings):
    """1.6 billion weights, and few tokens for an image, which makes it fast."""

    name: Literal["sana"] = "sana"


_HOME = "modules.families.sana"
_AUTOENCODER = "diffusers.models.autoencoders.autoencoder_dc"

TRANSFORMER = ModelClass(
    "diffusers.models.transformers.sana_transformer:SanaTransformer2DModel",
    ("diffusers.models.transformers.sana_transformer:SanaTransformerBlock",),
    f"{_HOME}.model:transformer_passes",
    layers=block_presets(r"^transformer_blocks\.\d+\.", "attn1|attn2", "ff"),
    # The embeddings of time, text and image, and the output: small, and sensitive.
    never_quantized=frozenset({"time_embed", "caption_projection", "patch_embed", "^proj_out"}),
    fill_buffers=f"{_HOME}.files:fill_positions",
    overflows_in_float16=True,  # the usual checkpoints were trained in bfloat16
    work=0.88,  # a quarter of the tokens of other transformers
)
DEEP_VAE = ModelClass(
    f"{_HOME}.autoencoder:AutoencoderDC",
    (f"{_AUTOENCODER}:EfficientViTBlock",),
    f"{_HOME}.autoencoder:vae_passes",
    (f"{_AUTOENCODER}:ResBlock",),
    library="diffusers",
)
CONVENTION = FlowConvention(time_input="1000 sigma", shift=ConstantShift(3.0), token_px=32, sample_grid="scheduler")
SANA = FamilySpec(
    name="sana",
    label="Sana",
    settings=SanaSettings,
    parts=chat_parts(TRANSFORMER, GEMMA2, DEEP_VAE, reader="Gemma 2"),
    size_step_px=32,
    latents=LatentSpec(channels=32, factor=32, overflows_in_float16=True),
    text=replace(
        chat_prompts(MAX_TOKENS - 1, "caption_channels"),
        tokenizer=f"{_HOME}.model:load_tokenizer",
        is_lower_case=True,
    ),
    process=flow_matching(CONVENTION),
    sample_guidance=4.5,
    adapter_form="diffusers",
    released="2024-11",
    is_for_research=True,
    ai_toolkit=("sana",),
)
