"""FLUX.1 (Black Forest Labs, 2024): rectified flow in a transformer of double-stream and single-stream blocks.

CLIP-L gives one state for the whole prompt, T5-XXL one for each token. Dev and Fill read a guidance scale as an input;
schnell was distilled further, to sample in a few steps, and has no such input. Kontext edits a reference image, whose
tokens it gets behind the image's; its weights have the shapes of dev's.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from annotated_types import Interval

from modules.data.buckets import Size
from modules.data.input_names import PIXEL_INPAINTING
from modules.data.inputs import REFERENCES
from modules.data.references import ReferenceSizes
from modules.diffusion.flow_convention import FlowConvention, TokenShift, flow_matching
from modules.families.distilled import DistilledSpec
from modules.families.model_class import ModelClass
from modules.families.parts import part_classes
from modules.families.settings import TRAINING_GUIDANCE, FamilySettings
from modules.families.spec import FamilySpec, LatentSpec, PartSpec
from modules.settings.field import advanced_setting

MAX_TOKENS = 512
"""The tokens that T5 reads of a prompt, with the end token and the padding (`FluxPipeline`)."""


_SCHNELL_TOKENS = 256


class FluxSettings(FamilySettings):
    """12 billion weights, distilled: dev for 20 steps and more, schnell for few."""

    name: Literal["flux"] = "flux"
    guidance: Annotated[
        float,
        *Interval(ge=0.0, le=100.0),
        replace(TRAINING_GUIDANCE, help=f"{TRAINING_GUIDANCE.help} FLUX.1 schnell has no such input."),
    ] = 1.0
    text_tokens: Annotated[
        int | None,
        *Interval(ge=1, le=MAX_TOKENS),
        advanced_setting(
            "T5 tokens",
            "The number of tokens that T5 reads of each prompt; shorter prompts are padded to it, and the model "
            "attends to the padding. Fewer need less memory and smaller caches, but differ from what other programs "
            "do.",
            unit="tokens",
            empty_means="512, 256 for schnell",
        ),
    ] = None

    def tokens_read(self, most: int, denoiser: Mapping[str, Any]) -> int:
        """Return the tokens that T5 reads of a prompt, without the end token; schnell reads half as many."""
        if self.text_tokens is not None:
            return self.text_tokens - 1
        return most if denoiser.get("guidance_embeds", True) else _SCHNELL_TOKENS - 1


_HOME = "modules.families.flux"
_CLASSES = "diffusers.models.transformers.transformer_flux"
PACKED = 2
"""The side of the square of latents that is one token of the transformer."""

TRANSFORMER = ModelClass(
    f"{_CLASSES}:FluxTransformer2DModel",
    (f"{_CLASSES}:FluxTransformerBlock", f"{_CLASSES}:FluxSingleTransformerBlock"),
    f"{_HOME}.model:transformer_passes",
    attention="modules.families.parts.attention_processor:set_backend",
    layers=part_classes.DOUBLE_STREAM_LAYERS,
    # The embeddings of time, guidance, text and image, and the output: small, and sensitive. The modulations of the
    # blocks are a quarter of the weights, and quantized in published files, too.
    never_quantized=frozenset({"time_text_embed", "context_embedder", "x_embedder", "norm_out", "^proj_out"}),
)
_KONTEXT_SIDES_PX = (672, 688, 720, 752, 800, 832, 880, 944, 1024, 1104, 1184, 1248, 1328, 1392, 1456, 1504, 1568)
_KONTEXT_SIZES = tuple(map(Size, _KONTEXT_SIDES_PX, reversed(_KONTEXT_SIDES_PX)))  # `FluxKontextPipeline`
FLUX = FamilySpec(
    name="flux",
    label="FLUX.1",
    settings=FluxSettings,
    parts=(
        PartSpec("transformer", "Transformer", "denoiser", TRANSFORMER),
        PartSpec(
            "text_encoder",
            "Text encoder 1 (CLIP-L)",
            "text_encoder",
            part_classes.CLIP_TEXT,
            most_tokens=part_classes.CLIP_CHUNK_TOKENS + 2,
        ),
        PartSpec("text_encoder_2", "Text encoder 2 (T5-XXL)", "text_encoder", part_classes.T5_TEXT),
        PartSpec("vae", "VAE", "vae", part_classes.KL_VAE, trainable=False),
    ),
    size_step_px=16,
    latents=LatentSpec(channels=16, factor=8, packed=PACKED, overflows_in_float16=True),
    text=replace(
        part_classes.t5_prompts(MAX_TOKENS, encoder="text_encoder_2", text_encoder="clip_l", text_encoder_2="t5xxl"),
        widths={
            "text_encoder": ("hidden_size", "pooled_projection_dim"),
            "text_encoder_2": ("d_model", "joint_attention_dim"),
        },
    ),
    variants={"inpainting": 16 + 64},
    inputs={"inpainting": PIXEL_INPAINTING, "edit": REFERENCES},
    process=flow_matching(FlowConvention(shift=TokenShift())),
    guidance="embedded",
    sample_guidance=3.5,
    distilled=DistilledSpec(
        ("schnell",),
        "Train on FLUX.1 dev, and use the result with schnell; both have the same layers. Training schnell directly "
        "undoes its distillation: its samples will need more steps. schnell itself is sampled in 4 steps and reads no "
        "guidance scale.",
        config_key="guidance_embeds",
        config_value=False,
        undone_words=("dedistill", "de-distill", "de_distill", "openflux", "libreflux", "libre-flux", "flex.1"),
        steps=4,
        lacks=("time_text_embed.guidance_embedder.",),
    ),
    released="2024-08",
    ai_toolkit=("flux", "flux_kontext"),
    kohya=("flux", "flux1"),
    references=ReferenceSizes(16, preferred=_KONTEXT_SIZES),
)
