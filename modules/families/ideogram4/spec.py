"""Ideogram 4 (Ideogram, 2026): rectified flow in one transformer over the tokens of text and then image.

Thirteen layers of Qwen3-VL read the prompts, which are captions in JSON, and the VAE is FLUX.2's. The model was trained
on `x_0 - eps`, and its time begins with noise. A second transformer, which reads no text, guides samples; only the
first one is trained.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from annotated_types import Interval

from modules.diffusion.flow_convention import FlowConvention, LogitNormalGrid, RootShift, flow_matching
from modules.families.model_class import ModelClass
from modules.families.parts.flux2.classes import LATENTS, VAE
from modules.families.parts.language_models import QWEN3_VL, chat_parts, chat_prompts
from modules.families.parts.part_classes import block_presets
from modules.families.settings import FamilySettings
from modules.families.spec import FamilySpec, PartSpec
from modules.settings.field import advanced_setting

MAX_TOKENS = 2048
"""The tokens of a prompt in its template (`Ideogram4Pipeline`)."""


class Ideogram4Settings(FamilySettings):
    """9.3 billion weights, and as many to guide samples; draws text and layouts from captions in JSON."""

    name: Literal["ideogram4"] = "ideogram4"
    text_tokens: Annotated[
        int | None,
        *Interval(ge=64, le=MAX_TOKENS),
        advanced_setting(
            "Text tokens",
            "The most tokens that are read of a prompt, with the 8 of the template. The model gets 53,248 values for "
            "each: in the cache of captions, a token takes 0.1 MB in 16 bits, a caption of 512 tokens 55 MB, one of "
            "2048 tokens 218 MB.",
            unit="tokens",
            empty_means="2048",
        ),
    ] = None

    def tokens_read(self, most: int, denoiser: Mapping[str, Any]) -> int:
        """Return the number of tokens that are read of a prompt, without the template's."""
        return most - (MAX_TOKENS - self.most_tokens)

    @property
    def most_tokens(self) -> int:
        """The most tokens of a prompt, with the template's."""
        return MAX_TOKENS if self.text_tokens is None else self.text_tokens


_HOME = "modules.families.ideogram4"
_TEMPLATE_TOKENS = 8
_USUAL_TOKENS = 512
LAYERS = (0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 35)
"""The layers of the text encoder whose states are read (`QWEN3_VL_ACTIVATION_LAYERS`)."""
GUIDE = "unconditional_transformer"

TRANSFORMER = ModelClass(
    f"{_HOME}.transformer:Ideogram4Transformer2DModel",
    ("diffusers.models.transformers.transformer_ideogram4:Ideogram4TransformerBlock",),
    f"{_HOME}.model:transformer_passes",
    attention="modules.families.parts.attention_processor:set_backend",
    layers=block_presets(r"^layers\.\d+\.", "attention", "feed_forward"),
    usual_layers="attention_mlp",
    # The embeddings of time, text and image, the modulations and the output.
    never_quantized=frozenset(
        {"input_proj", "llm_cond_proj", "t_embedding", "adaln_proj", "adaln_modulation", "final_layer"}
    ),
    masks_padding=True,
    library="diffusers",
    overflows_in_float16=True,  # diffusers' example for training gives NaN in float16
    work=3.5,
    joins_weights=True,
)
CONVENTION = FlowConvention(
    target_sign=-1, time_input="1 - sigma", shift=RootShift(1024), sample_grid=LogitNormalGrid(1.5, -7.5, 9.0)
)
IDEOGRAM4 = FamilySpec(
    name="ideogram4",
    label="Ideogram 4",
    settings=Ideogram4Settings,
    parts=(
        *chat_parts(TRANSFORMER, QWEN3_VL, VAE, reader="Qwen3-VL"),
        PartSpec(GUIDE, "Unconditional transformer", "guidance", TRANSFORMER, trainable=False, optional=True),
    ),
    size_step_px=16,
    latents=LATENTS,
    text=replace(
        chat_prompts(MAX_TOKENS - _TEMPLATE_TOKENS, "llm_features_dim", states_read=len(LAYERS)),
        usual_tokens=_USUAL_TOKENS,
    ),
    process=flow_matching(CONVENTION),
    sample_guidance=7.0,
    adapter_form="comfyui",
    released="2026-05",
    is_for_research=True,
    ai_toolkit=("ideogram4",),
    kohya=("ideogram4",),
)
