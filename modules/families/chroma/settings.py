"""The settings of Chroma1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from modules.families.settings import FamilySettings

FROZEN = "distilled_guidance_layer."
"""The approximator, which makes the modulations of all blocks: it is never trained, adapted or quantized."""


class ChromaSettings(FamilySettings):
    """8.9 billion weights: FLUX.1 schnell, made smaller and without its distillation."""

    name: Literal["chroma"] = "chroma"

    def unreached_layers(self, part: str, config: Mapping[str, Any], variant: str) -> tuple[str, ...]:
        """Return the approximator: it has no gradient, as only the time goes into it."""
        return (FROZEN,) if part == "transformer" else ()
