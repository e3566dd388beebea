"""The settings of FLUX.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from modules.families.settings import FamilySettings
from modules.settings.field import Setting

MAX_TOKENS = 512
"""The tokens that T5 reads of a prompt, with the end token and the padding (`FluxPipeline`)."""


_SCHNELL_TOKENS = 256


class FluxSettings(FamilySettings):
    """12 billion weights, distilled: dev for 20 steps and more, schnell for few."""

    name: Literal["flux"] = "flux"
    guidance: Annotated[
        float,
        Ge(0.0),
        Le(100.0),
        Setting(
            "Training guidance",
            "The guidance scale that the model gets in training; samples have their own. At 1 the model learns the "
            "images as they are. FLUX.1 schnell has no such input.",
            group="Base model",
            level="advanced",
        ),
    ] = 1.0
    text_tokens: Annotated[
        int | None,
        Ge(1),
        Le(MAX_TOKENS),
        Setting(
            "T5 tokens",
            "The number of tokens that T5 reads of each prompt; shorter prompts are padded to it, and the model "
            "attends to the padding. Fewer need less memory and smaller caches, but differ from what other programs "
            "do.",
            group="Base model",
            unit="tokens",
            level="advanced",
            empty_means="512, 256 for schnell",
        ),
    ] = None

    def tokens_read(self, most: int, denoiser: Mapping[str, Any]) -> int:
        """Return the tokens that T5 reads of a prompt, without the end token; schnell reads half as many."""
        if self.text_tokens is not None:
            return self.text_tokens - 1
        return most if denoiser.get("guidance_embeds", True) else _SCHNELL_TOKENS - 1
