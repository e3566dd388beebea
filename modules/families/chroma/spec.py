"""Chroma1 (Lodestone Rock, 2025): FLUX.1 schnell without its distillation, without CLIP and with fewer parameters.

One small network, the approximator, makes the modulations of all blocks from the time; T5 alone reads the prompts, and
its padding is masked but for one token. Base and HD are for training; Flash was distilled again.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from modules.diffusion.flow_convention import ConstantShift, FlowConvention, flow_matching
from modules.families.distilled import DistilledSpec
from modules.families.model_class import ModelClass
from modules.families.parts.part_classes import DOUBLE_STREAM_LAYERS, KL_VAE, T5_TEXT, t5_prompts
from modules.families.settings import FamilySettings
from modules.families.spec import FamilySpec, LatentSpec, PartSpec
from modules.settings.layer_filter import LayerFilter

FROZEN = "distilled_guidance_layer."
"""The approximator, which makes the modulations of all blocks: it is never trained, adapted or quantized."""


class ChromaSettings(FamilySettings):
    """8.9 billion weights: FLUX.1 schnell, made smaller and without its distillation."""

    name: Literal["chroma"] = "chroma"

    def unreached_layers(self, part: str, config: Mapping[str, Any], variant: str) -> tuple[str, ...]:
        """Return the approximator: it has no gradient, as only the time goes into it."""
        return (FROZEN,) if part == "transformer" else ()


_HOME = "modules.families.chroma"
_CLASSES = "diffusers.models.transformers.transformer_chroma"
MAX_TOKENS = 512
"""The tokens that T5 reads of a prompt, the end token among them (`ChromaPipeline`)."""

TRANSFORMER = ModelClass(
    f"{_CLASSES}:ChromaTransformer2DModel",
    (f"{_CLASSES}:ChromaTransformerBlock", f"{_CLASSES}:ChromaSingleTransformerBlock"),
    f"{_HOME}.model:transformer_passes",
    attention="modules.families.parts.attention_processor:set_backend",
    # As in OneTrainer's presets, without the last layer of single blocks.
    layers={
        **DOUBLE_STREAM_LAYERS,
        "attention_mlp": LayerFilter((r"_blocks\.\d+\.(attn|ff|ff_context|proj_mlp)\.?",), is_regex=True),
    },
    never_quantized=frozenset({FROZEN.removesuffix("."), "context_embedder", "x_embedder", "^proj_out"}),
    masks_padding=True,
    fill_buffers=f"{_HOME}.files:fill_buffers",
)
CHROMA = FamilySpec(
    name="chroma",
    label="Chroma1",
    settings=ChromaSettings,
    parts=(
        PartSpec("transformer", "Transformer", "denoiser", TRANSFORMER),
        PartSpec("text_encoder", "Text encoder (T5-XXL)", "text_encoder", T5_TEXT),
        PartSpec("vae", "VAE", "vae", KL_VAE, trainable=False),
    ),
    size_step_px=16,
    latents=LatentSpec(channels=16, factor=8, packed=2, overflows_in_float16=True),
    text=replace(
        t5_prompts(MAX_TOKENS, text_encoder="t5xxl"), widths={"text_encoder": ("d_model", "joint_attention_dim")}
    ),
    process=flow_matching(FlowConvention(shift=ConstantShift(1.0))),
    sample_guidance=3.0,
    distilled=DistilledSpec(
        ("flash",),
        "Train on Chroma1-Base or Chroma1-HD, and use the result with Flash; all have the same layers. Training Flash "
        "directly undoes its distillation: its samples will need more steps and guidance. Flash itself is sampled in "
        "about 8 steps with a guidance of 1.",
    ),
    released="2025-08",
    ai_toolkit=("chroma",),
    kohya=("chroma",),
)
