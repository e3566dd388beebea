"""The settings of FLUX.3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from modules.families.settings import FamilySettings

EDITING = "edit"
"""The model variant that gets reference images. Its weights are those of the base model."""
OF_REFERENCES = tuple(
    f"{place}.image_cond."
    for place in ("mode_blocks", "x_embedders", "early_stream_modulations", "single_stream_modulations")
)
"""The beginnings of the names of the layers that only reference images go through."""


class Flux3Settings(FamilySettings):
    """5.5 billion weights: klein base, for images alone."""

    name: Literal["flux3"] = "flux3"

    def unreached_layers(self, part: str, config: Mapping[str, Any], variant: str) -> tuple[str, ...]:
        """Return the layers of reference images, unless the model gets any."""
        return OF_REFERENCES if part == "transformer" and variant != EDITING else ()
