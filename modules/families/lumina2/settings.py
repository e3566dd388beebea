"""The settings of Lumina-Image 2.0, and the tokens that it reads."""

from __future__ import annotations

from typing import Literal

from modules.families.settings import FamilySettings

MAX_TOKENS = 256
"""The tokens that the text encoder reads of a prompt after its instruction (`Lumina2Pipeline`)."""


class Lumina2Settings(FamilySettings):
    """2.6 billion weights, for prompts in English and Chinese; anime models are made from it."""

    name: Literal["lumina2"] = "lumina2"
