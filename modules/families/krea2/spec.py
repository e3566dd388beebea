"""Krea 2 (Krea AI, 2026): rectified flow in one transformer over the tokens of text and image.

Twelve layers of Qwen3-VL read the prompts, a small transformer fuses them, and the VAE is Qwen-Image's. Raw is the base
model, for training; Turbo was distilled from it.
"""

from typing import Literal

from modules.diffusion.flow_convention import FlowConvention, TokenShift, flow_matching
from modules.families.distilled import DistilledSpec
from modules.families.model_class import ModelClass
from modules.families.parts.language_models import QWEN3_VL, chat_parts, chat_prompts
from modules.families.parts.part_classes import QWEN_IMAGE_VAE, block_presets
from modules.families.settings import FamilySettings
from modules.families.spec import FamilySpec, LatentSpec


class Krea2Settings(FamilySettings):
    """12.9 billion weights: Raw to train, Turbo to sample in few steps."""

    name: Literal["krea2"] = "krea2"


_HOME = "modules.families.krea2"
_CLASSES = "diffusers.models.transformers.transformer_krea2"
MAX_TOKENS = 512
"""The tokens of a prompt that the transformer reads, with the end of the template (`Krea2Pipeline`)."""
_END_TOKENS = 5
TURBO_MU = 1.15
"""The shift of Turbo's samples, as its logarithm, for images of every size (`Krea2Pipeline`)."""

TRANSFORMER = ModelClass(
    f"{_CLASSES}:Krea2Transformer2DModel",
    (f"{_CLASSES}:Krea2TransformerBlock", f"{_CLASSES}:Krea2TextFusionBlock"),
    f"{_HOME}.model:transformer_passes",
    attention="modules.families.parts.attention_processor:set_backend",
    # Without the fusion of text layers. "All layers" is what the model's authors train.
    layers=block_presets(r"^transformer_blocks\.\d+\.", "attn", "ff"),
    usual_layers="all",
    masks_padding=True,
    never_quantized=frozenset({"img_in", "time_embed", "time_mod_proj", "txt_in", "projector", "final_layer"}),
    work=3.5,
)
KREA2 = FamilySpec(
    name="krea2",
    label="Krea 2",
    settings=Krea2Settings,
    parts=chat_parts(TRANSFORMER, QWEN3_VL, QWEN_IMAGE_VAE, reader="Qwen3-VL"),
    size_step_px=16,
    latents=LatentSpec(channels=16, factor=8, packed=2),
    text=chat_prompts(MAX_TOKENS - _END_TOKENS, "text_hidden_dim"),
    process=flow_matching(FlowConvention(shift=TokenShift(max_tokens=6400))),
    sample_guidance=5.5,
    distilled=DistilledSpec(
        ("turbo",),
        "Train on Krea 2 Raw: the result works on Turbo, and with Turbo as the sampling model the samples show it "
        "there. Training Turbo directly undoes its distillation. Turbo itself is sampled in 8 steps with a guidance of "
        "1.",
        index_key="is_distilled",
    ),
    adapter_form="comfyui",
    released="2026-06",
    ai_toolkit=("krea2",),
    kohya=("krea2",),
)
