"""The settings of FLUX.2 klein."""

from __future__ import annotations

from typing import Literal

from modules.families.parts.flux2.settings import Flux2Settings


class Flux2KleinSettings(Flux2Settings):
    """4 or 9 billion weights; base models, and distilled ones for few steps."""

    name: Literal["flux2_klein"] = "flux2_klein"
