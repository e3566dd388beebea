"""The settings of Ideogram 4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from modules.families.settings import FamilySettings
from modules.settings.field import Setting

MAX_TOKENS = 2048
"""The tokens of a prompt in its template (`Ideogram4Pipeline`)."""


class Ideogram4Settings(FamilySettings):
    """9.3 billion weights, and as many to guide samples; draws text and layouts from captions in JSON."""

    name: Literal["ideogram4"] = "ideogram4"
    text_tokens: Annotated[
        int | None,
        Ge(64),
        Le(MAX_TOKENS),
        Setting(
            "Text tokens",
            "The most tokens that are read of a prompt, with the 8 of the template. The model gets 53,248 values for "
            "each: in the cache of captions, a token takes 0.1 MB in 16 bits, a caption of 512 tokens 55 MB, one of "
            "2048 tokens 218 MB.",
            group="Base model",
            unit="tokens",
            level="advanced",
            empty_means="2048",
        ),
    ] = None

    def tokens_read(self, most: int, denoiser: Mapping[str, Any]) -> int:
        """Return the tokens that are read of a prompt, without those of the template."""
        return most - (MAX_TOKENS - self.most_tokens)

    @property
    def most_tokens(self) -> int:
        """The most tokens of a prompt, with those of the template."""
        return MAX_TOKENS if self.text_tokens is None else self.text_tokens
