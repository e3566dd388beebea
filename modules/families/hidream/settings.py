"""The settings of HiDream I1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from modules.families.settings import FamilySettings
from modules.settings.field import Setting

USUAL_TOKENS, MAX_TOKENS = 128, 218
"""The tokens that each text encoder reads of a prompt, and the most for which CLIP-G has positions."""


class HiDreamSettings(FamilySettings):
    """17 billion weights, of which a token uses two thirds; reads prompts through four text encoders."""

    name: Literal["hidream"] = "hidream"
    text_tokens: Annotated[
        int,
        Ge(8),
        Le(MAX_TOKENS),
        Setting(
            "Tokens",
            "The number of tokens that each text encoder reads of a prompt. T5 and Llama pad shorter prompts to it, "
            "and the model attends to the padding. The cache of a prompt takes 270 kB for each token in bfloat16.",
            group="Base model",
            unit="tokens",
            level="advanced",
        ),
    ] = USUAL_TOKENS

    def tokens_read(self, most: int, denoiser: Mapping[str, Any]) -> int:
        """Return the tokens that T5 and Llama read of a prompt, without their end or start token."""
        return self.text_tokens - 1
