"""The settings of Z-Image."""

from __future__ import annotations

from typing import Literal

from modules.families.settings import FamilySettings


class ZImageSettings(FamilySettings):
    """6 billion weights; a base model, and a distilled one for few steps (Turbo)."""

    name: Literal["z_image"] = "z_image"
