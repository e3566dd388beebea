"""The settings of HunyuanVideo."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.families.settings import FamilySettings
from modules.settings.field import Setting


class HunyuanVideoSettings(FamilySettings):
    """13 billion weights, a model of videos that is trained and sampled here with images: videos of one frame."""

    name: Literal["hunyuan_video"] = "hunyuan_video"
    guidance: Annotated[
        float,
        Ge(0.0),
        Le(100.0),
        Setting(
            "Training guidance",
            "The guidance scale that the model gets in training; samples have their own. At 1 the model learns the "
            "images as they are.",
            group="Base model",
            level="advanced",
        ),
    ] = 1.0
