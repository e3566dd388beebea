"""Anima (CircleStone Labs, 2026): rectified flow in Cosmos-Predict2's transformer of 2B, trained on illustrations.

Prompts are read twice: Qwen3 0.6B gives their states, and the ids of T5's tokens are the queries with which a small
network, the text conditioner, reads those states. The VAE is Qwen-Image's.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from modules.diffusion.flow_convention import ConstantShift, FlowConvention, flow_matching
from modules.families.distilled import DistilledSpec
from modules.families.model_class import ModelClass
from modules.families.parts.language_models import QWEN3
from modules.families.parts.part_classes import QWEN_IMAGE_VAE, block_presets
from modules.families.settings import FamilySettings
from modules.families.spec import FamilySpec, LatentSpec, PartSpec, TextSpec
from modules.settings.field import advanced_setting

CONDITIONER = "text_conditioner"
"""The part that makes the transformer's text of Qwen3's states."""


class AnimaSettings(FamilySettings):
    """2 billion weights, for anime and drawings."""

    name: Literal["anima"] = "anima"
    train_conditioner: Annotated[
        bool,
        advanced_setting(
            "Train the text conditioner",
            "Also trains the small network between Qwen3 and the transformer, with a learning rate of its own. It "
            "holds much of what the model knows of tags, artists and characters, and its makers advise against it. "
            "Prompts are encoded in each step then, as they cannot be cached.",
        ),
    ] = False

    @property
    def frozen_parts(self) -> frozenset[str]:
        """The conditioner, unless it is to be trained."""
        return frozenset() if self.train_conditioner else frozenset({CONDITIONER})


_HOME = "modules.families.anima"
_USUAL_TOKENS = 512  # to which shorter prompts are padded with zeros; longer ones are read, too
MAX_TOKENS = 4096
"""The most tokens that are read of a prompt, T5's end token among them (`AnimaTextEncoderStep`)."""


def longest_side(config: Mapping[str, Any]) -> int:
    """Return the longest side of latents: all axes share the positions of the longest one (`CosmosRotaryPosEmbed`)."""
    patches = (side // patch for side, patch in zip(config["max_size"], config["patch_size"], strict=True))
    return int(max(patches) * config["patch_size"][-1])


TRANSFORMER = ModelClass(
    f"{_HOME}.transformer:CosmosTransformer3DModel",
    ("diffusers.models.transformers.transformer_cosmos:CosmosTransformerBlock",),
    f"{_HOME}.model:transformer_passes",
    attention=f"{_HOME}.transformer:set_backend",
    # Without the modulations, as OneTrainer and sd-scripts have it.
    layers=block_presets(r"^transformer_blocks\.\d+\.", "attn1|attn2", "ff"),
    # The embeddings of time and image, the modulations and the output: small, and sensitive.
    never_quantized=frozenset({"time_embed", "patch_embed", "norm1", "norm2", "norm3", "norm_out", "proj_out"}),
    library="diffusers",
    longest_side=longest_side,
    work=3.5,
    joins_weights=True,
)
TEXT_CONDITIONER = ModelClass(
    "diffusers.models.condition_embedders.condition_embedder_anima:AnimaTextConditioner",
    ("diffusers.models.condition_embedders.condition_embedder_anima:AnimaTextConditionerBlock",),
    f"{_HOME}.model:conditioner_passes",
    never_quantized=frozenset({"in_proj", "out_proj"}),
    fill_buffers=f"{_HOME}.files:fill_buffers",
)
ANIMA = FamilySpec(
    name="anima",
    label="Anima",
    settings=AnimaSettings,
    parts=(
        PartSpec("transformer", "Transformer", "denoiser", TRANSFORMER),
        PartSpec("text_encoder", "Text encoder (Qwen3)", "text_encoder", QWEN3, trainable=False),
        PartSpec(
            CONDITIONER,
            "Text conditioner",
            "text_encoder",
            TEXT_CONDITIONER,
            tokenizer="t5_tokenizer",
            reads="text_encoder",
        ),
        PartSpec("vae", "VAE", "vae", QWEN_IMAGE_VAE, trainable=False),
    ),
    size_step_px=16,
    latents=LatentSpec(channels=16, factor=8),
    text=TextSpec(
        MAX_TOKENS - 1,
        "modules.families.parts.t5_tokens:load_t5_tokenizer",
        truncates=True,
        ships_vocabulary=False,
        usual_tokens=_USUAL_TOKENS,
        widths={CONDITIONER: ("target_dim", "text_embed_dim")},
        counted_by=CONDITIONER,
    ),
    process=flow_matching(FlowConvention(shift=ConstantShift(3.0))),
    sample_guidance=4.0,
    distilled=DistilledSpec(
        ("turbo",),
        "Train on Anima Base, and use the result with Turbo; both have the same layers. Training Turbo directly undoes "
        "its distillation: its samples will need more steps and guidance. Turbo itself is sampled in 8 steps with a "
        "guidance of 1.",
    ),
    adapter_form="comfyui",
    released="2026-05",
    ai_toolkit=("anima",),
    kohya=("anima",),
)
