"""Wuerstchen 2 (Pernias et al. 2023): a prior of 1 billion weights over the embeddings of an EfficientNet.

The prior (stage C) and its CLIP are trained. What encodes images for it and decodes its latents (stages B and A) is one
frozen part here, an autoencoder whose files are elsewhere: an image of 128 px has latents of 3 x 3.

Its noise process is Stable Cascade's, which followed: the cosine schedule, at a thousand of its times.
"""

from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Literal

from modules.families.model_class import ModelClass
from modules.families.parts.part_classes import CLIP_TEXT, block_presets, clip_prompts
from modules.families.settings import FamilySettings
from modules.families.spec import FamilySpec, LatentSpec, PartSpec
from modules.settings.field import Setting, advanced_setting

DECODER = "warp-ai/wuerstchen"
"""The repository of the decoder."""
ENCODER = "dome272/wuerstchen"
"""The repository with the image encoder: inside the authors' file of stage B."""


class WuerstchenSettings(FamilySettings):
    """1 billion weights, and latents of 24 x 24 at 1024 px: fast steps on large images. Free, also for business."""

    name: Literal["wuerstchen"] = "wuerstchen"
    decoder: Annotated[
        str,
        Setting(
            "Decoder",
            "The model that decodes samples (stages A and B, with a text encoder of its own): a folder in diffusers "
            "layout, or the name of a Hugging Face repository. It is not trained. Not used if the folder of the base "
            "model has it.",
            path_kind="model",
        ),
    ] = DECODER
    effnet_encoder: Annotated[
        str,
        advanced_setting(
            "EfficientNet encoder",
            "The network that encodes images into latents: a file, model_v2_stage_b.pt or one of the encoder alone, or "
            "the folder or repository of such a file. Not used if the decoder's folder has it, as "
            "effnet_encoder.safetensors.",
            path_kind="model",
        ),
    ] = ENCODER


_HOME = "modules.families.wuerstchen"
_LAYERS = "diffusers.pipelines.deprecated.wuerstchen.modeling_wuerstchen_common"
_STAGE_B = "diffusers.pipelines.deprecated.wuerstchen.modeling_wuerstchen_diffnext"

PRIOR = ModelClass(
    f"{_HOME}.prior:WuerstchenPrior",
    (f"{_LAYERS}:AttnBlock",),
    f"{_HOME}.prior:prior_passes",
    (f"{_LAYERS}:ResBlock",),
    layers=block_presets(r"^blocks\.\d+\.", "attention|kv_mapper", "channelwise"),
    # The embeddings of latents, text and time, and the output: small, and sensitive.
    never_quantized=frozenset({"projection", "cond_mapper", "mapper", "out"}),
    library="diffusers",
    channels_key="c_in",
)
AUTOENCODER = ModelClass(
    f"{_HOME}.model:WuerstchenAutoencoder",
    (f"{_LAYERS}:AttnBlock",),
    f"{_HOME}.model:autoencoder_passes",
    (f"{_STAGE_B}:ResBlockStageB",),
    library="diffusers",
)
WUERSTCHEN = FamilySpec(
    name="wuerstchen",
    label="Wuerstchen 2",
    settings=WuerstchenSettings,
    parts=(
        PartSpec("prior", "Prior (stage C)", "denoiser", PRIOR),
        PartSpec("text_encoder", "Text encoder (OpenCLIP bigG)", "text_encoder", CLIP_TEXT),
        PartSpec("vae", "Image encoder and decoder", "vae", AUTOENCODER, trainable=False, published_in=(DECODER,)),
    ),
    size_step_px=128,
    latents=LatentSpec(channels=16, factor=Fraction(128, 3)),
    text=replace(
        clip_prompts(text_encoder="clip_g"), truncates=True, widths={"text_encoder": ("hidden_size", "c_cond")}
    ),
    sample_guidance=4.0,
    released="2023-09",
)
