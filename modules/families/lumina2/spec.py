"""Lumina-Image 2.0 (Qin et al. 2025, arXiv 2503.21758): rectified flow in one transformer over text and image.

Gemma 2 reads the prompts after an instruction, and the VAE is FLUX.1's. The model was trained on `x_0 - eps`, and its
time begins with noise.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from modules.diffusion.flow_convention import ConstantShift, FlowConvention, flow_matching
from modules.families.model_class import ModelClass
from modules.families.parts.language_models import GEMMA2, chat_parts, chat_prompts
from modules.families.parts.part_classes import KL_VAE, block_presets
from modules.families.settings import FamilySettings
from modules.families.spec import FamilySpec, LatentSpec

MAX_TOKENS = 256
"""The tokens that the text encoder reads of a prompt after its instruction (`Lumina2Pipeline`)."""


class Lumina2Settings(FamilySettings):
    """2.6 billion weights, for prompts in English and Chinese; anime models are made from it."""

    name: Literal["lumina2"] = "lumina2"


_HOME = "modules.families.lumina2"
_INSTRUCTION_TOKENS = 31


def longest_side(config: Mapping[str, Any]) -> int:
    """Return the longest side of latents: rows and columns have tables of positions (`Lumina2RotaryPosEmbed`)."""
    return int(min(config["axes_lens"][1:]) * config["patch_size"])


TRANSFORMER = ModelClass(
    "diffusers.models.transformers.transformer_lumina2:Lumina2Transformer2DModel",
    ("diffusers.models.transformers.transformer_lumina2:Lumina2TransformerBlock",),
    f"{_HOME}.model:transformer_passes",
    layers=block_presets(r"^layers\.\d+\.", "attn", "feed_forward"),
    # The embeddings of time, text and image, the modulations and the output: small, and sensitive.
    never_quantized=frozenset({"time_caption_embed", "x_embedder", "norm1", "norm_out"}),
    longest_side=longest_side,
    overflows_in_float16=True,  # the published weights are bfloat16
    work=1.6,
)
LUMINA2 = FamilySpec(
    name="lumina2",
    label="Lumina 2",
    settings=Lumina2Settings,
    parts=chat_parts(TRANSFORMER, GEMMA2, KL_VAE, reader="Gemma 2"),
    size_step_px=16,
    latents=LatentSpec(channels=16, factor=8, overflows_in_float16=True),
    text=replace(
        chat_prompts(MAX_TOKENS - _INSTRUCTION_TOKENS, "cap_feat_dim"),
        tokenizer="modules.families.parts.gemma:load_tokenizer",
    ),
    process=flow_matching(FlowConvention(target_sign=-1, time_input="1 - sigma", shift=ConstantShift(6.0))),
    guided_norm="rows",
    sample_guidance=4.0,
    adapter_form="comfyui",
    released="2025-01",
    ai_toolkit=("lumina2",),
    kohya=("lumina",),
)
