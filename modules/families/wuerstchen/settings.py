"""The settings of Wuerstchen 2: where the parts are that its base models do not contain."""

from __future__ import annotations

from typing import Annotated, Literal

from modules.families.settings import FamilySettings
from modules.settings.field import Setting

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
            group="Base model",
            path_kind="model",
        ),
    ] = DECODER
    effnet_encoder: Annotated[
        str,
        Setting(
            "EfficientNet encoder",
            "The network that encodes images into latents: a file, model_v2_stage_b.pt or one of the encoder alone, or "
            "the folder or repository of such a file. Not used if the decoder's folder has it, as "
            "effnet_encoder.safetensors.",
            group="Base model",
            level="advanced",
            path_kind="model",
        ),
    ] = ENCODER
