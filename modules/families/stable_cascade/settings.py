"""The settings of Stable Cascade: where the parts are that its base models do not contain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from modules.families.settings import FamilySettings
from modules.settings.field import Setting

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
            group="Base model",
            path_kind="model",
        ),
    ] = DECODER
    effnet_encoder: Annotated[
        str,
        Setting(
            "EfficientNet encoder",
            "A .safetensors file of the network that encodes images into latents.",
            group="Base model",
            level="advanced",
            path_kind="file",
            empty_means="the decoder's own",
        ),
    ] = ""

    def unreached_layers(self, part: str, config: Mapping[str, Any], variant: str) -> tuple[str, ...]:
        """Return the layer that embeds an image."""
        return (OF_IMAGES,) if part == "prior" else ()
