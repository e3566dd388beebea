"""ERNIE-Image (Baidu, 2026): rectified flow in one transformer over the tokens of image and text, one after the other.

A Ministral 3 of 3 billion weights reads the prompts, and the VAE is FLUX.2's. All blocks share one modulation. The
model and Turbo differ in their weights and their shift. The prompt enhancer of its folder, a language model that makes
a long prompt of a short one, is not read.
"""

from dataclasses import replace
from typing import Literal

from modules.diffusion.flow_convention import ConstantShift, FlowConvention, flow_matching
from modules.families.distilled import DistilledSpec
from modules.families.model_class import ModelClass
from modules.families.parts.flux2.classes import LATENTS, VAE
from modules.families.parts.language_models import MISTRAL, chat_parts, chat_prompts
from modules.families.parts.part_classes import block_presets
from modules.families.settings import FamilySettings
from modules.families.spec import FamilySpec

MAX_TOKENS = 2048
"""The tokens that the text encoder reads of a prompt, with the start token (`tokenizer_config.json`)."""


class ErnieImageSettings(FamilySettings):
    """8 billion weights; reads long prompts, and draws text and layouts well."""

    name: Literal["ernie_image"] = "ernie_image"


_HOME = "modules.families.ernie_image"
_CLASSES = "diffusers.models.transformers.transformer_ernie_image"

TRANSFORMER = ModelClass(
    f"{_CLASSES}:ErnieImageTransformer2DModel",
    (f"{_CLASSES}:ErnieImageSharedAdaLNBlock",),
    f"{_HOME}.model:transformer_passes",
    attention="modules.families.parts.attention_processor:set_backend",
    layers=block_presets(r"^layers\.\d+\.", "self_attention", "mlp"),
    # The embeddings of time, text and image, the output, and the modulation that all blocks share.
    never_quantized=frozenset(
        {"time_embedding", "text_proj", "x_embedder", "adaLN_modulation", "final_norm", "^final_linear"}
    ),
    masks_padding=True,
    overflows_in_float16=True,  # it was trained in bfloat16
    work=3.5,
)
ERNIE_IMAGE = FamilySpec(
    name="ernie_image",
    label="ERNIE-Image",
    settings=ErnieImageSettings,
    parts=chat_parts(TRANSFORMER, MISTRAL, VAE, reader="Ministral 3"),
    size_step_px=16,
    latents=LATENTS,
    text=replace(chat_prompts(MAX_TOKENS - 1, "text_in_dim"), usual_tokens=512),
    process=flow_matching(FlowConvention(time_input="1000 sigma", shift=ConstantShift(4.0))),
    sample_guidance=4.0,
    distilled=DistilledSpec(
        ("turbo",),
        "Train on ERNIE-Image, and use the result with Turbo; both have the same layers. Training Turbo directly "
        "undoes its distillation: its samples will need more steps and guidance. Turbo itself is sampled in 8 steps "
        "with a guidance of 1.",
    ),
    adapter_form="comfyui",
    released="2026-04",
    ai_toolkit=("ernie_image",),
)
