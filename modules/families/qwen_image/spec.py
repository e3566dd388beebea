"""Qwen-Image (Wu et al. 2025, arXiv 2508.02324): rectified flow in a transformer of two streams, of text and of image.

The text part of a Qwen2.5-VL reads the prompts, and the VAE is one of videos (`parts/frame_vae.py`). Qwen-Image and
Qwen-Image-2512 differ in their weights alone. Qwen-Image-Edit edits one reference image, 2509 and 2511 up to
three: their tokens are behind the image's, and the whole Qwen2.5-VL sees them with the prompt. 2511 modulates
them as at the time 0 (`zero_cond_t` in the transformer's config).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from modules.data.inputs import REFERENCES
from modules.data.references import CaptionImages, ReferenceSizes
from modules.diffusion.flow_convention import FlowConvention, TokenShift, flow_matching
from modules.families.distilled import DistilledSpec
from modules.families.model_class import ModelClass
from modules.families.parts import language_models, part_classes
from modules.families.settings import FamilySettings
from modules.families.spec import FamilySpec, LatentSpec

_HOME = "modules.families.qwen_image"
_CLASSES = "diffusers.models.transformers.transformer_qwenimage"
PACKED = 2
"""The side of the square of latents that is one token of the transformer."""
MAX_TOKENS = 512
"""The tokens of a prompt that the transformer reads (`QwenImagePipeline`), including the template's behind it."""
_TEMPLATE_TOKENS = 5
ONE_REFERENCE = "edit_one"
"""The variant of the first Qwen-Image-Edit."""
_REFERENCES = ReferenceSizes(32, is_stretched=True)
# Of the text's stream the last block needs the keys and values alone: its output is not used.
_UNUSED_IN_LAST = ("attn.add_q_proj.", "attn.norm_added_q.", "attn.to_add_out.", "txt_mlp.")


def unused_layers(num_blocks: int) -> tuple[str, ...]:
    """Return the layers of a transformer with that many blocks that change nothing, by the start of their names."""
    return tuple(f"transformer_blocks.{num_blocks - 1}.{name}" for name in _UNUSED_IN_LAST)


class QwenImageSettings(FamilySettings):
    """20 billion weights; draws text in images well."""

    name: Literal["qwen_image"] = "qwen_image"

    def unreached_layers(self, part: str, config: Mapping[str, Any], variant: str) -> tuple[str, ...]:
        """Return the layers of the transformer's last block whose results are not used."""
        return unused_layers(int(config["num_layers"])) if part == "transformer" else ()


TRANSFORMER = ModelClass(
    f"{_CLASSES}:QwenImageTransformer2DModel",
    (f"{_CLASSES}:QwenImageTransformerBlock",),
    f"{_HOME}.model:transformer_passes",
    attention="modules.families.parts.attention_processor:set_backend",
    layers=part_classes.block_presets(r"^transformer_blocks\.\d+\.", "attn", "img_mlp|txt_mlp"),
    # The embeddings of time, text and image, and the output: small, and sensitive. The modulations of the blocks are a
    # third of the weights, and quantized in published files, too.
    never_quantized=frozenset({"time_text_embed", "txt_in", "img_in", "norm_out", "^proj_out"}),
    masks_padding=True,
    fill_buffers=f"{_HOME}.files:fill_positions",
    overflows_in_float16=True,  # diffusers' class clips the states of float16
    work=3.5,
    joins_weights=True,
)
QWEN_IMAGE = FamilySpec(
    name="qwen_image",
    label="Qwen-Image",
    settings=QwenImageSettings,
    parts=language_models.chat_parts(
        TRANSFORMER,
        language_models.QWEN25_VL,
        part_classes.QWEN_IMAGE_VAE,
        reader="Qwen2.5-VL",
        seeing={"edit": language_models.QWEN25_VL_SEEING, ONE_REFERENCE: language_models.QWEN25_VL_SEEING},
    ),
    size_step_px=16,
    latents=LatentSpec(channels=16, factor=8, packed=PACKED),
    text=language_models.chat_prompts(MAX_TOKENS - _TEMPLATE_TOKENS, "joint_attention_dim"),
    inputs={"edit": REFERENCES, ONE_REFERENCE: REFERENCES[:1]},
    process=flow_matching(FlowConvention(shift=TokenShift(max_tokens=8192, max_shift=0.9))),
    guided_norm=PACKED,
    sample_guidance=4.0,
    distilled=DistilledSpec(
        ("lightning", "turbo", "distill", "distilled"),
        "Train on Qwen-Image or Qwen-Image-2512, and use the result with the distilled one; all have the same layers. "
        "Training a distilled model directly undoes its distillation: its samples will need more steps and guidance. "
        "Lightning itself is sampled in 4 or 8 steps with a guidance of 1.",
    ),
    adapter_form="comfyui",
    released="2025-08",
    references=_REFERENCES,
    caption_images={
        "edit": CaptionImages(replace(_REFERENCES, area_px=384 * 384), token_px=28),
        ONE_REFERENCE: CaptionImages(_REFERENCES, token_px=28),
    },
    ai_toolkit=("qwen_image", "qwen_image_edit", "qwen_image_edit_plus"),
    kohya=("qwen_image", "qwen-image", "qwen", "qwen_image_edit", "qwen-image-edit"),
)
