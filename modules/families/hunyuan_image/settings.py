"""The settings of HunyuanImage 2.1, and what the text in quotes of a prompt changes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from modules.families.settings import FamilySettings
from modules.families.spec import ProjectedGuidance

GLYPH_LAYERS = "context_embedder_2."
"""The layers that only quoted text reaches: they are kept as they are, as the presets of other trainers keep them."""

_QUOTES = (r"'(.*?)'", r"\"(.*?)\"", "‘(.*?)’", "“(.*?)”")
# The authors' for 50 steps (`guider` and `ocr_guider` of the pipeline, whose first step is 0).
_GUIDANCE, _GUIDANCE_OF_QUOTED = ProjectedGuidance(plain_steps=6), ProjectedGuidance(plain_steps=39)


def glyph_text(prompt: str) -> str:
    """Return ByT5's input for a prompt: the text in quotes, of each kind of quotes in turn; empty without any.

    As in `extract_glyph_text` of the pipeline, the letters between two apostrophes count, too.
    """
    found = [text for quotes in _QUOTES for text in re.findall(quotes, prompt)]
    return "".join(f'Text "{text}". ' for text in found)


def projected_guidance(prompt: str) -> ProjectedGuidance:
    """Return how samples of a prompt are guided after their first steps: later, if it has quoted text."""
    return _GUIDANCE_OF_QUOTED if glyph_text(prompt) else _GUIDANCE


class HunyuanImageSettings(FamilySettings):
    """17 billion weights for images of 2048 pixels; reads the text in quotes letter by letter."""

    name: Literal["hunyuan_image"] = "hunyuan_image"

    def unreached_layers(self, part: str, config: Mapping[str, Any], variant: str) -> tuple[str, ...]:
        """Return the layers of the transformer that are not trained: those of quoted text."""
        return (GLYPH_LAYERS,) if part == "transformer" else ()
