"""Stable Cascade (Pernias et al. 2024): a prior of 3.6 billion weights over the embeddings of an EfficientNet.

The prior (stage C) and its CLIP are trained. What encodes images for it and decodes its latents (stages B and A) is one
frozen part here, an autoencoder whose files are elsewhere: an image of 128 px has latents of 3 x 3.

The noise process is the cosine schedule of `DDPMWuerstchenScheduler`. Its times, from 0 to 1, are as continuous as
those of any DDPM model: here they are the thousand that all samplers and weightings know, (t + 1) / 1000.
"""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Any, Literal

from modules.families.model_class import ModelClass
from modules.families.parts.part_classes import CLIP_TEXT_WITH_PROJECTION, block_presets, clip_prompts
from modules.families.settings import FamilySettings
from modules.families.spec import FamilySpec, LatentSpec, PartSpec
from modules.settings.field import Setting, advanced_setting

DECODER = "stabilityai/stable-cascade"
"""The repository of the decoder, which also has the image encoder."""
OF_IMAGES = "clip_img_mapper"
"""The layer of the prior that embeds an image next to the prompt: it reads zeros here."""


class StableCascadeSettings(FamilySettings):
    """3.6 billion weights, and latents of 24 x 24 at 1024 px: fast steps on large images. For research alone."""

    name: Literal["stable_cascade"] = "stable_cascade"
    decoder: Annotated[
        str,
        Setting(
            "Decoder",
            "The model that decodes samples (stages A and B): a folder in diffusers layout, or the name of a Hugging "
            "Face repository. It also contains the image encoder, effnet_encoder.safetensors. Neither is trained. Not "
            "used if the folder of the base model has them.",
            path_kind="model",
        ),
    ] = DECODER
    effnet_encoder: Annotated[
        str,
        advanced_setting(
            "EfficientNet encoder",
            "A .safetensors file of the network that encodes images into latents.",
            path_kind="file",
            empty_means="the decoder's own",
        ),
    ] = ""

    def unreached_layers(self, part: str, config: Mapping[str, Any], variant: str) -> tuple[str, ...]:
        """Return the layer that embeds an image."""
        return (OF_IMAGES,) if part == "prior" else ()


_HOME = "modules.families.stable_cascade"
_UNET = "diffusers.models.unets.unet_stable_cascade"
_BLOCKS = (f"{_UNET}:SDCascadeAttnBlock",), (f"{_UNET}:SDCascadeResBlock",)

PRIOR = ModelClass(
    f"{_HOME}.unet:StableCascadeUNet",
    _BLOCKS[0],
    f"{_HOME}.unet:prior_passes",
    _BLOCKS[1],
    layers=block_presets(r"^(down|up)_blocks\.\d+\.\d+\.", "attention|kv_mapper", "channelwise"),
    # The embeddings of time, text and image, and the output: small, and sensitive.
    never_quantized=frozenset(
        {"mapper", "mapper_sca", "mapper_crp", "clip_txt_mapper", "clip_txt_pooled_mapper", "clip_img_mapper", "clf"}
    ),
    library="diffusers",
    overflows_in_float16=True,
    joins_weights=True,
)
AUTOENCODER = ModelClass(
    f"{_HOME}.model:StableCascadeAutoencoder",
    _BLOCKS[0],
    f"{_HOME}.model:autoencoder_passes",
    _BLOCKS[1],
    library="diffusers",
)
STABLE_CASCADE = FamilySpec(
    name="stable_cascade",
    label="Stable Cascade",
    settings=StableCascadeSettings,
    parts=(
        PartSpec("prior", "Prior (stage C)", "denoiser", PRIOR),
        PartSpec("text_encoder", "Text encoder (OpenCLIP bigG)", "text_encoder", CLIP_TEXT_WITH_PROJECTION),
        PartSpec("vae", "Image encoder and decoder", "vae", AUTOENCODER, trainable=False, published_in=(DECODER,)),
    ),
    size_step_px=128,
    latents=LatentSpec(channels=16, factor=Fraction(128, 3)),
    text=replace(
        clip_prompts(text_encoder="clip_g"),
        truncates=True,
        widths={"text_encoder": ("hidden_size", "clip_text_in_channels")},
    ),
    sample_guidance=4.0,
    released="2024-02",
    is_for_research=True,
)
