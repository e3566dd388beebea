"""The settings of Stable Diffusion XL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from modules.families.parts.diffusion_settings import LatentDiffusionSettings, last_layers
from modules.settings.field import Setting


class SdxlSettings(LatentDiffusionSettings):
    """2.6 billion weights, for images of 1024 pixels; many models are based on it."""

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

    def unreached_layers(self, part: str, config: Mapping[str, Any], variant: str) -> tuple[str, ...]:
        """Return the last layer and the norm of the first encoder, and the layers that clip skip leaves out.

        The pooled state of the second encoder reaches all of its layers.
        """
        if part != "text_encoder":
            return ()
        return (*last_layers(config, self.skipped_layers(part) + 1), "final_layer_norm")
