"""The settings of FLUX.2 dev."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.families.parts.flux2.classes import Flux2Settings
from modules.settings.field import Setting


class Flux2DevSettings(Flux2Settings):
    """32 billion weights, distilled: for large cards, or quantized."""

    name: Literal["flux2"] = "flux2"
    guidance: Annotated[
        float,
        Ge(0.0),
        Le(100.0),
        Setting(
            "Training guidance",
            "The guidance scale that the model gets in training; samples have their own. At 1 the model learns the "
            "images as they are.",
            group="Base model",
            level="advanced",
        ),
    ] = 1.0
