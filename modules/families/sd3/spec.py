"""Stable Diffusion 3 and 3.5 (Esser et al. 2024): rectified flow in a transformer of joint blocks.

CLIP-L, CLIP-G and T5-XXL read the prompts; a model may lack any of them, and sees zeros in its place. Medium 3.5 has a
second attention of the image alone in its first blocks. Large Turbo was distilled for a few steps.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from annotated_types import Interval

from modules.diffusion.flow_convention import ConstantShift, FlowConvention, flow_matching
from modules.families.distilled import DistilledSpec
from modules.families.model_class import ModelClass
from modules.families.parts import part_classes
from modules.families.parts.diffusion_settings import CLIP_SKIP_2, skip_of
from modules.families.settings import FamilySettings
from modules.families.spec import FamilySpec, LatentSpec, PartSpec
from modules.settings.field import advanced_setting

USUAL_TOKENS, MAX_TOKENS = 256, 512
"""The tokens that T5 reads of a prompt, with the end token and the padding, and the most that
`StableDiffusion3Pipeline` allows.
"""


class Sd3Settings(FamilySettings):
    """2 to 8 billion weights (medium and large), for images of 1024 pixels."""

    name: Literal["sd3"] = "sd3"
    text_tokens: Annotated[
        int,
        *Interval(ge=1, le=MAX_TOKENS),
        advanced_setting(
            "T5 tokens",
            "The number of tokens that T5 reads of each prompt; shorter prompts are padded to it, and the model "
            "attends to the padding. OneTrainer has 77. Fewer need less memory and smaller caches. Both CLIPs always "
            "read 75.",
            unit="tokens",
        ),
    ] = USUAL_TOKENS
    clip_skip: Annotated[
        int,
        *Interval(ge=0, le=10),
        advanced_setting(
            "Clip skip",
            "How many of the last layers of CLIP-L are skipped, besides the one that the model always skips.",
            unit="layers",
        ),
    ] = 0
    clip_skip_2: Annotated[int | None, *Interval(ge=0, le=30), CLIP_SKIP_2] = None

    def skipped_layers(self, encoder: str) -> int:
        """Return the clip skip of one of the CLIPs; T5 has none."""
        return 0 if encoder == "text_encoder_3" else skip_of(encoder, self.clip_skip, self.clip_skip_2)

    def unreached_layers(self, part: str, config: Mapping[str, Any], variant: str) -> tuple[str, ...]:
        """Return the queries of the text in the last block: nothing reads what they attend to.

        The pooled states of the CLIPs reach all of their layers.
        """
        return unread_queries(config) if part == "transformer" else ()

    def tokens_read(self, most: int, denoiser: Mapping[str, Any]) -> int:
        """Return the tokens that T5 reads of a prompt, without the end token."""
        return self.text_tokens - 1


def unread_queries(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the layers of a transformer of this config whose output nothing reads."""
    attention = f"transformer_blocks.{int(config['num_layers']) - 1}.attn"
    return f"{attention}.add_q_proj", f"{attention}.norm_added_q"


_HOME = "modules.families.sd3"


def longest_side(config: Mapping[str, Any]) -> int:
    """Return the longest side of latents: `pos_embed` is a table of the positions of patches (`PatchEmbed`)."""
    return int(config["pos_embed_max_size"] * config["patch_size"])


TRANSFORMER = ModelClass(
    "diffusers.models.transformers.transformer_sd3:SD3Transformer2DModel",
    ("diffusers.models.attention:JointTransformerBlock",),
    f"{_HOME}.model:transformer_passes",
    attention=f"{_HOME}.attention:set_joint_processors",
    layers=part_classes.block_presets(r"^transformer_blocks\.\d+\.", "attn|attn2", "ff|ff_context"),
    # The embeddings of time, prompt, text and image, and the output: small, and sensitive.
    never_quantized=frozenset({"time_text_embed", "context_embedder", "pos_embed", "norm_out", "^proj_out"}),
    longest_side=longest_side,
    joins_weights=True,
)
CLIP_L = replace(part_classes.CLIP_TEXT_WITH_PROJECTION, identity_if_missing=frozenset({"text_projection.weight"}))
EMBEDDINGS = {"text_encoder": "clip_l", "text_encoder_2": "clip_g", "text_encoder_3": "t5xxl"}
"""The names of an embedding's tensors, by text encoder."""
SD3 = FamilySpec(
    name="sd3",
    label="Stable Diffusion 3",
    settings=Sd3Settings,
    parts=(
        PartSpec("transformer", "Transformer", "denoiser", TRANSFORMER),
        PartSpec(
            "text_encoder",
            "Text encoder 1 (CLIP-L)",
            "text_encoder",
            CLIP_L,
            most_tokens=part_classes.CLIP_CHUNK_TOKENS + 2,
            optional=True,
        ),
        PartSpec(
            "text_encoder_2",
            "Text encoder 2 (CLIP-G)",
            "text_encoder",
            part_classes.CLIP_TEXT_WITH_PROJECTION,
            most_tokens=part_classes.CLIP_CHUNK_TOKENS + 2,
            optional=True,
        ),
        PartSpec("text_encoder_3", "Text encoder 3 (T5-XXL)", "text_encoder", part_classes.T5_TEXT, optional=True),
        PartSpec("vae", "VAE", "vae", part_classes.KL_VAE, trainable=False),
    ),
    size_step_px=16,
    latents=LatentSpec(channels=16, factor=8, overflows_in_float16=True),
    text=replace(
        part_classes.t5_prompts(USUAL_TOKENS, encoder="text_encoder_3", **EMBEDDINGS),
        widths={"text_encoder_3": ("d_model", "joint_attention_dim")},
    ),
    text_without={"text_encoder_3": replace(part_classes.clip_prompts(**EMBEDDINGS), truncates=True)},
    process=flow_matching(FlowConvention(time_input="1000 sigma", shift=ConstantShift(3.0), sample_grid="scheduler")),
    sample_guidance=4.5,
    distilled=DistilledSpec(
        ("turbo",),
        "Train on Stable Diffusion 3.5 Large, and use the result with Large Turbo; both have the same layers. Training "
        "Turbo directly undoes its distillation: its samples will need more steps and guidance. Turbo itself is "
        "sampled in 4 steps with a guidance of 1.",
        steps=4,
    ),
    released="2024-06",
    ai_toolkit=("sd3",),
    kohya=("sd3", "medium", "5-medium", "5-large"),
)
