"""The settings of Stable Diffusion 1.x and 2.x."""

from __future__ import annotations

from typing import Literal

from modules.families.parts.diffusion_settings import LatentDiffusionSettings


class SdSettings(LatentDiffusionSettings):
    """Stable Diffusion 1.x and 2.x."""

    name: Literal["sd"] = "sd"
