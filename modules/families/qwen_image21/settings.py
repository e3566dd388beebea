"""The settings of Qwen-Image 2.1."""

from __future__ import annotations

from typing import Literal

from modules.families.settings import FamilySettings


class QwenImage21Settings(FamilySettings):
    """7 billion weights; needs no guidance, and draws text in images well."""

    name: Literal["qwen_image21"] = "qwen_image21"
