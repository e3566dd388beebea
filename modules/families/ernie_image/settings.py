"""The settings of ERNIE-Image, and the tokens that it reads."""

from __future__ import annotations

from typing import Literal

from modules.families.settings import FamilySettings

MAX_TOKENS = 2048
"""The tokens that the text encoder reads of a prompt, with the start token (`tokenizer_config.json`)."""


class ErnieImageSettings(FamilySettings):
    """8 billion weights; reads long prompts, and draws text and layouts well."""

    name: Literal["ernie_image"] = "ernie_image"
