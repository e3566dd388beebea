"""PixArt alpha (Chen et al. 2023) and sigma (Chen et al. 2024): diffusion transformers of 0.6 billion weights.

The noise process is DDPM with linear betas. T5-XXL reads prompts in lower case, 120 tokens for alpha, 300 for sigma;
its padding is masked. Sigma has SDXL's VAE. LCM and DMD were distilled for a few steps.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from modules.families.model_class import ModelClass
from modules.families.parts.part_classes import DISTILLED_DDPM, KL_VAE, T5_TEXT, block_presets, t5_prompts
from modules.families.settings import FamilySettings
from modules.families.spec import FamilySpec, LatentSpec, PartSpec

MAX_TOKENS, ALPHA_TOKENS = 300, 120
"""The tokens that sigma and alpha read of a prompt, with the end token (their pipelines in diffusers)."""
_WITH_SIZES_PX = 128
"""The side of latents for which a config that does not state it has size conditions (diffusers' class)."""


class PixArtSettings(FamilySettings):
    """Small (0.6 billion weights) with a large text encoder (T5)."""

    name: Literal["pixart"] = "pixart"

    def tokens_read(self, most: int, denoiser: Mapping[str, Any]) -> int:
        """Return the tokens that T5 reads of a prompt, without the end token."""
        return ALPHA_TOKENS - 1 if denoiser and is_alpha(denoiser) else most


def is_alpha(config: Mapping[str, Any]) -> bool:
    """Return whether a transformer is PixArt alpha's: only configs of sigma state that there are no size conditions."""
    return config.get("use_additional_conditions") is not False


def has_size_conditions(config: Mapping[str, Any]) -> bool:
    """Return whether a transformer reads the size and the aspect ratio of images, as alpha of 1024 px does."""
    stated = config.get("use_additional_conditions")
    return bool(config["sample_size"] == _WITH_SIZES_PX if stated is None else stated)


_HOME = "modules.families.pixart"

TRANSFORMER = ModelClass(
    "diffusers.models.transformers.pixart_transformer_2d:PixArtTransformer2DModel",
    ("diffusers.models.attention:BasicTransformerBlock",),
    f"{_HOME}.model:transformer_passes",
    attention=f"{_HOME}.transformer:set_self_attention",
    layers=block_presets(r"^transformer_blocks\.\d+\.", "attn1|attn2", "ff"),
    # The embeddings of time, sizes, text and image, and the output: small, and sensitive.
    never_quantized=frozenset({"adaln_single", "caption_projection", "pos_embed", "^proj_out"}),
    fill_buffers=f"{_HOME}.transformer:fill_positions",
    work=3.5,
)
PIXART = FamilySpec(
    name="pixart",
    label="PixArt",
    settings=PixArtSettings,
    parts=(
        PartSpec("transformer", "Transformer", "denoiser", TRANSFORMER),
        PartSpec("text_encoder", "Text encoder (T5-XXL)", "text_encoder", T5_TEXT),
        PartSpec("vae", "VAE", "vae", KL_VAE, trainable=False),
    ),
    size_step_px=16,
    latents=LatentSpec(channels=4, factor=8, overflows_in_float16=True),
    text=replace(
        t5_prompts(MAX_TOKENS, text_encoder="t5xxl"),
        tokenizer="modules.families.parts.t5_tokens:load_lower_case_t5_tokenizer",
        is_lower_case=True,
        widths={"text_encoder": ("d_model", "caption_channels")},
    ),
    sample_guidance=4.5,
    distilled=replace(DISTILLED_DDPM, words=(*DISTILLED_DDPM.words, "dmd"), steps=4),
    adapter_form="diffusers",
    released="2023-11",
    ai_toolkit=("pixart", "pixart_sigma"),
)
