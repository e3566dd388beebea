"""The settings of Sana, and the tokens that it reads."""

from __future__ import annotations

from typing import Literal

from modules.families.settings import FamilySettings

MAX_TOKENS = 300
"""The states of a prompt that the transformer reads, with that of the start token (`SanaPipeline`)."""


class SanaSettings(FamilySettings):
    """1.6 billion weights, and few tokens for an image, which makes it fast."""

    name: Literal["sana"] = "sana"
