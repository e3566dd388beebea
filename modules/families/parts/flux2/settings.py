"""The settings that FLUX.2 dev and klein share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from annotated_types import Ge, Le

from modules.families.parts.flux2.classes import MAX_TOKENS
from modules.families.settings import FamilySettings
from modules.settings.field import Setting


class Flux2Settings(FamilySettings):
    """The tokens of a prompt."""

    text_tokens: Annotated[
        int | None,
        Ge(64),
        Le(MAX_TOKENS),
        Setting(
            "Text tokens",
            "The number of tokens that the text encoder reads of each prompt, with those of the template; shorter "
            "prompts are padded to it, and the model attends to the padding. Fewer need less memory and smaller "
            "caches, but differ from what other programs do.",
            group="Base model",
            unit="tokens",
            level="advanced",
            empty_means="512",
        ),
    ] = None

    def tokens_read(self, most: int, denoiser: Mapping[str, Any]) -> int:
        """Return the tokens that are read of a prompt, without those of the template."""
        return most if self.text_tokens is None else most - (MAX_TOKENS - self.text_tokens)

    @property
    def padded_tokens(self) -> int:
        """The tokens of every prompt, with the template and the padding."""
        return MAX_TOKENS if self.text_tokens is None else self.text_tokens
