"""Z-Image (Cai et al. 2025, arXiv 2511.22699): rectified flow in one transformer over the tokens of text and image.

A Qwen3 reads the prompts, and the VAE is FLUX.1's. The base model, Turbo and De-Turbo differ in their weights alone.
"""

from collections.abc import Mapping
from typing import Any, Literal

from modules.diffusion.flow_convention import ConstantShift, FlowConvention, flow_matching
from modules.families.distilled import DistilledSpec
from modules.families.model_class import ModelClass
from modules.families.parts.language_models import QWEN3, chat_parts, chat_prompts
from modules.families.parts.part_classes import KL_VAE, block_presets
from modules.families.settings import FamilySettings
from modules.families.spec import FamilySpec, LatentSpec


class ZImageSettings(FamilySettings):
    """6 billion weights; a base model, and a distilled one for few steps (Turbo)."""

    name: Literal["z_image"] = "z_image"


_HOME = "modules.families.z_image"
MAX_TOKENS = 512
"""The tokens that the text encoder reads of a prompt in its template (`ZImagePipeline`)."""
_TEMPLATE_TOKENS = 8


def longest_side(config: Mapping[str, Any]) -> int:
    """Return the longest side of latents: rows and columns have tables of positions (`RopeEmbedder`)."""
    return int(min(config["axes_lens"][1:]) * config["all_patch_size"][0])


TRANSFORMER = ModelClass(
    "diffusers.models.transformers.transformer_z_image:ZImageTransformer2DModel",
    ("diffusers.models.transformers.transformer_z_image:ZImageTransformerBlock",),
    f"{_HOME}.model:transformer_passes",
    attention="modules.families.parts.attention_processor:set_backend",
    # Without the refiners, as OneTrainer's presets have it.
    layers=block_presets(r"^layers\.\d+\.", "attention", "feed_forward"),
    # The embeddings of time, text and image, the modulations and the output: small, and sensitive.
    never_quantized=frozenset({"t_embedder", "cap_embedder", "adaLN_modulation", "all_x_embedder", "all_final_layer"}),
    longest_side=longest_side,
    work=3.5,
    overflows_in_float16=True,  # the activations inside its MLPs reach 66,000
)
CONVENTION = FlowConvention(output_sign=-1, time_input="1 - sigma", shift=ConstantShift(3.0))
Z_IMAGE = FamilySpec(
    name="z_image",
    label="Z-Image",
    settings=ZImageSettings,
    parts=chat_parts(TRANSFORMER, QWEN3, KL_VAE, reader="Qwen3"),
    size_step_px=16,
    latents=LatentSpec(channels=16, factor=8, overflows_in_float16=True),
    text=chat_prompts(MAX_TOKENS - _TEMPLATE_TOKENS, "cap_feat_dim"),
    process=flow_matching(CONVENTION),
    sample_guidance=4.0,
    distilled=DistilledSpec(
        ("turbo",),
        "To use the result with Turbo, train on Z-Image-De-Turbo, or on Turbo with a training adapter; one that was "
        "trained on Z-Image often acts only weakly there. Training Turbo directly undoes its distillation: its samples "
        "will need more steps and guidance. Turbo itself is sampled in 8 steps with a guidance of 1.",
        undone_words=("de-turbo", "deturbo", "de_turbo"),
    ),
    adapter_form="comfyui",
    released="2025-11",
    ai_toolkit=("zimage",),
    kohya=("zimage", "z_image"),
)
