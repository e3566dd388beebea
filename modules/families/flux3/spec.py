"""FLUX.3 (Black Forest Labs, 2026): rectified flow in one transformer over the tokens of text and image.

Text and image first go through blocks of their own, then through joint ones. The published model with open weights,
klein, has images alone, and a third stream for reference images. Eight layers of Qwen3-VL read the prompts, and the VAE
is FLUX.2's.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from modules.data.inputs import REFERENCES
from modules.data.references import ReferenceSizes
from modules.diffusion.flow_convention import ConstantShift, FlowConvention, flow_matching
from modules.families.distilled import DistilledSpec
from modules.families.model_class import ModelClass
from modules.families.parts.flux2.classes import LATENTS, VAE
from modules.families.parts.language_models import QWEN3_VL, chat_parts, chat_prompts
from modules.families.parts.part_classes import block_presets
from modules.families.settings import FamilySettings
from modules.families.spec import FamilySpec

EDITING = "edit"
"""The model variant that gets reference images. It has the weights of the base model."""
OF_REFERENCES = tuple(
    f"{place}.image_cond."
    for place in ("mode_blocks", "x_embedders", "early_stream_modulations", "single_stream_modulations")
)
"""The beginnings of the names of the layers that only reference images go through."""


class Flux3Settings(FamilySettings):
    """5.5 billion weights: klein base, for images alone."""

    name: Literal["flux3"] = "flux3"

    def unreached_layers(self, part: str, config: Mapping[str, Any], variant: str) -> tuple[str, ...]:
        """Return the layers of reference images, unless the model gets any."""
        return OF_REFERENCES if part == "transformer" and variant != EDITING else ()


_HOME = "modules.families.flux3"
_CLASSES = "diffusers.models.transformers.transformer_flux3"
MAX_TOKENS = 8192
"""The tokens of a prompt in its template, with its padding (`Flux3TextEncoderStep`)."""
LAYERS = (4, 8, 12, 16, 20, 24, 28, 32)
"""The hidden states of Qwen3-VL that the transformer reads side by side: 20,480 values for each token."""
PADDED_TO = 80
"""Prompts are padded to a multiple of so many tokens; the transformer attends to the padding."""
_TEMPLATE_TOKENS = 8
_USUAL_TOKENS = 320

TRANSFORMER = ModelClass(
    f"{_HOME}.transformer:Flux3Transformer2DModel",
    (f"{_CLASSES}:Flux3ModeTransformerBlock", f"{_CLASSES}:Flux3SingleTransformerBlock"),
    f"{_HOME}.model:transformer_passes",
    attention="modules.families.parts.attention_processor:set_backend",
    layers=block_presets(r"^(mode_blocks\.\w+|txt_mode_blocks|single_transformer_blocks)\.\d+\.", "attn", "ff"),
    # The embeddings of time, text and image, the modulations of all blocks, and the output: small, and sensitive.
    never_quantized=frozenset(
        {
            *("timestep_embedder", "target_timestep_embedder", "context_embedder", "x_embedders", "norm_out"),
            *("early_stream_modulations", "single_stream_modulations", "^proj_out"),
        }
    ),
    masks_padding=True,
    library="diffusers",
    work=3.5,
)
FLUX3 = FamilySpec(
    name="flux3",
    label="FLUX.3",
    settings=Flux3Settings,
    parts=chat_parts(TRANSFORMER, QWEN3_VL, VAE, reader="Qwen3-VL"),
    size_step_px=16,
    latents=LATENTS,
    text=replace(
        chat_prompts(MAX_TOKENS - _TEMPLATE_TOKENS, "joint_attention_dim", states_read=len(LAYERS)),
        usual_tokens=_USUAL_TOKENS,
    ),
    inputs={EDITING: REFERENCES},
    process=flow_matching(FlowConvention(shift=ConstantShift(6.93))),
    sample_guidance=3.5,
    distilled=DistilledSpec(
        ("flux-3-image-klein", "flux3-image-klein", "flux_3_image_klein", "flux3_image_klein"),
        "Train on FLUX.3 klein base, and use the result with klein; both have the same layers. klein itself can be "
        "neither trained nor sampled here: each of its 16 steps also reads the noise level that it jumps to.",
        config_key="flow_map",
        config_value=True,
        undone_words=("base",),
        steps=16,
        adds=("target_timestep_embedder.",),
        is_refused=True,
        published=frozenset({"black-forest-labs/flux-3-image-klein"}),
    ),
    adapter_form="diffusers",
    released="2026-10",
    is_for_research=True,  # and for other uses that are not commercial
    # Of several references: in the pipeline a single one may have four times as many pixels.
    references=ReferenceSizes(16),
)
