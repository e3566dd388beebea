"""The settings of Z-Image."""

from __future__ import annotations

from typing import Literal

from modules.families.settings import FamilySettings


class ZImageSettings(FamilySettings):
    """Z-Image."""

    name: Literal["z_image"] = "z_image"
