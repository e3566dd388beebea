"""The settings of HunyuanImage 2.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from modules.families.settings import FamilySettings

GLYPH_LAYERS = "context_embedder_2."
"""The layers that only quoted text reaches: they are kept as they are, as the presets of other trainers keep them."""


class HunyuanImageSettings(FamilySettings):
    """17 billion weights for images of 2048 pixels; reads the text in quotes letter by letter."""

    name: Literal["hunyuan_image"] = "hunyuan_image"

    def unreached_layers(self, part: str, config: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the layers of the transformer that are not trained: those of quoted text."""
        return (GLYPH_LAYERS,) if part == "transformer" else ()
