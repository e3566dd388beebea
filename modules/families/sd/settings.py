"""The settings of Stable Diffusion 1.x and 2.x."""

from __future__ import annotations

from typing import Literal

from modules.families.parts.diffusion_settings import LatentDiffusionSettings


class SdSettings(LatentDiffusionSettings):
    """Small (0.9 billion weights), for images of 512 to 768 pixels: trains on almost any card."""

    name: Literal["sd"] = "sd"
