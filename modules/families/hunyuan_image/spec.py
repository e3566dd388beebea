"""HunyuanImage 2.1 (Tencent 2025): rectified flow in a transformer of double and single blocks, for images of 2048 px.

Qwen2.5-VL reads the prompts, and ByT5 the text in quotes. Each latent of the VAE covers 32 x 32 pixels, and is a token.
The model for fewer steps and the refiner, which the authors run after it, are other models (`hunyuan_image/model.py`).
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from modules.diffusion.flow_convention import ConstantShift, FlowConvention, flow_matching
from modules.families.distilled import DistilledSpec
from modules.families.model_class import ModelClass, VaeFile
from modules.families.parts.language_models import QWEN25_VL, chat_prompts
from modules.families.parts.part_classes import DOUBLE_STREAM_LAYERS, T5_TEXT
from modules.families.projected_guidance import ProjectedGuidance
from modules.families.settings import FamilySettings
from modules.families.spec import FamilySpec, LatentSpec, PartSpec

GLYPH_LAYERS = "context_embedder_2."
"""The layers that only quoted text reaches: they are kept as they are, as the presets of other trainers keep them."""

_QUOTES = (r"'(.*?)'", r"\"(.*?)\"", "‘(.*?)’", "“(.*?)”")
# The authors' for 50 steps (`guider` and `ocr_guider` of the pipeline, whose first step is 0).
_GUIDANCE, _GUIDANCE_OF_QUOTED = ProjectedGuidance(plain_steps=6), ProjectedGuidance(plain_steps=39)


def glyph_text(prompt: str) -> str:
    """Return ByT5's input for a prompt: the text in quotes, of each kind of quotes in turn; empty without any.

    As in `extract_glyph_text` of the pipeline, the letters between two apostrophes count, too.
    """
    texts = [text for quotes in _QUOTES for text in re.findall(quotes, prompt)]
    return "".join(f'Text "{text}". ' for text in texts)


def projected_guidance(prompt: str) -> ProjectedGuidance:
    """Return how samples of a prompt are guided after their first steps: later, if it has quoted text."""
    return _GUIDANCE_OF_QUOTED if glyph_text(prompt) else _GUIDANCE


class HunyuanImageSettings(FamilySettings):
    """17 billion weights for images of 2048 pixels; reads the text in quotes letter by letter."""

    name: Literal["hunyuan_image"] = "hunyuan_image"

    def unreached_layers(self, part: str, config: Mapping[str, Any], variant: str) -> tuple[str, ...]:
        """Return the layers of the transformer that are not trained: the ones that read quoted text."""
        return (GLYPH_LAYERS,) if part == "transformer" else ()


_HOME = "modules.families.hunyuan_image"
_CLASSES = "diffusers.models.transformers.transformer_hunyuanimage"
FACTOR = 32
MAX_TOKENS = 1000
"""The tokens of a prompt that the transformer reads (`HunyuanImagePipeline`), with one of the template behind it."""
GLYPH_TOKENS = 128
"""The bytes of quoted text that ByT5 reads, with what is between the quotations."""
_USUAL_TOKENS = 256

TRANSFORMER = ModelClass(
    f"{_HOME}.transformer:HunyuanImageTransformer2DModel",
    (f"{_CLASSES}:HunyuanImageTransformerBlock", f"{_CLASSES}:HunyuanImageSingleTransformerBlock"),
    f"{_HOME}.model:transformer_passes",
    attention="modules.families.parts.attention_processor:set_backend",
    layers=DOUBLE_STREAM_LAYERS,
    # The embeddings of time, text and image, and the output: small, and sensitive. The refiner of the text is among
    # them.
    never_quantized=frozenset(
        {"time_guidance_embed", "context_embedder", "context_embedder_2", "x_embedder", "norm_out", "^proj_out"}
    ),
    masks_padding=True,
    library="diffusers",
    work=3.5,
    joins_weights=True,
)
_VAE = "diffusers.models.autoencoders.autoencoder_kl_hunyuanimage"
VAE = ModelClass(
    f"{_VAE}:AutoencoderKLHunyuanImage",
    (f"{_VAE}:HunyuanImageAttentionBlock",),
    "modules.families.parts.frame_vae:hunyuan_vae_passes",
    (f"{_VAE}:HunyuanImageResnetBlock",),
    vae_file=VaeFile(
        f"{_HOME}.vae_file:vae_slots",
        original=("encoder.down.5.block.", "encoder.down.0.block."),
        diffusers=("encoder.down_blocks.0.norm1.", "encoder.mid_block.attentions.0.to_q."),
    ),
)
HUNYUAN_IMAGE = FamilySpec(
    name="hunyuan_image",
    label="HunyuanImage 2.1",
    settings=HunyuanImageSettings,
    parts=(
        PartSpec("transformer", "Transformer", "denoiser", TRANSFORMER),
        PartSpec("text_encoder", "Text encoder 1 (Qwen2.5-VL)", "text_encoder", QWEN25_VL, trainable=False),
        PartSpec(
            "text_encoder_2",
            "Text encoder 2 (ByT5)",
            "text_encoder",
            T5_TEXT,
            trainable=False,
            most_tokens=GLYPH_TOKENS,
        ),
        PartSpec("vae", "VAE", "vae", VAE, trainable=False),
    ),
    default_resolution_px=2048,
    size_step_px=FACTOR,
    latents=LatentSpec(channels=64, factor=FACTOR),
    text=replace(
        chat_prompts(MAX_TOKENS - 1, "text_embed_dim"),
        usual_tokens=_USUAL_TOKENS,
        widths={
            "text_encoder": ("hidden_size", "text_embed_dim"),
            "text_encoder_2": ("d_model", "text_embed_2_dim"),
        },
    ),
    process=flow_matching(FlowConvention(time_input="1000 sigma", shift=ConstantShift(5.0), token_px=FACTOR)),
    sample_guidance=3.5,
    projected_guidance=projected_guidance,
    distilled=DistilledSpec(
        ("distilled", "distill"),
        "Train on HunyuanImage 2.1 itself, and use the result with the distilled model in another program; both have "
        "the same layers.",
        config_key="use_meanflow",
        config_value=True,
        is_refused=True,
        published=frozenset(
            {
                "hunyuanvideo-community/hunyuanimage-2.1-distilled-diffusers",
                "hunyuanimage2.1_distilled_bf16.safetensors",
                "hunyuanimage2.1-distilled.safetensors",
            }
        ),
    ),
    adapter_form="comfyui",
    released="2025-09",
    kohya=("hunyuan_image", "hunyuan-image-2.1"),
)
