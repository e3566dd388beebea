"""The settings of Stable Diffusion XL."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.families.parts.diffusion_settings import LatentDiffusionSettings
from modules.settings.field import Setting


class SdxlSettings(LatentDiffusionSettings):
    """Stable Diffusion XL."""

    name: Literal["sdxl"] = "sdxl"
    clip_skip_2: Annotated[
        int | None,
        Ge(0),
        Le(31),
        Setting(
            "Clip skip 2",
            "Clip skip of the second text encoder.",
            group="Base model",
            unit="layers",
            level="advanced",
            empty_means="same as the first",
        ),
    ] = None

    def skipped_layers(self, encoder: str) -> int:
        """Return the clip skip of one of the text encoders."""
        if encoder == "text_encoder_2" and self.clip_skip_2 is not None:
            return self.clip_skip_2
        return self.clip_skip
