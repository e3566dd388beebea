"""The protocols of captioners and maskers, and the settings of their models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SoftMask = NDArray[np.float32]
"""(height, width) of the image, from 0 to 1."""

Detail = Literal["short", "detailed", "long"]


@dataclass(frozen=True, slots=True)
class CaptionSettings:
    """The settings of captioners; each uses some of them.

    Tags with at least the probability `threshold` are written, names of characters with `character_threshold`. A text
    model continues `initial`; `detail` is how much it describes. `excluded_tags` are never written.
    """

    threshold: float = 0.35
    character_threshold: float = 0.85
    excluded_tags: tuple[str, ...] = ()
    keep_underscores: bool = False
    initial: str = ""
    detail: Detail = "detailed"


@dataclass(frozen=True, slots=True)
class MaskSettings:
    """The settings of maskers; each uses some of them.

    `prompts` name what is masked in; `colour` is a name or a hexadecimal value, and `tolerance` the largest difference
    from it in any of red, green and blue. Pixels with at least the probability `threshold` are white in the mask.
    """

    prompts: tuple[str, ...] = ()
    colour: str = "#000000"
    tolerance: int = 20
    threshold: float = 0.3


DEFAULT_CAPTION_SETTINGS = CaptionSettings()
DEFAULT_MASK_SETTINGS = MaskSettings()


class Captioner(Protocol):
    """Describes images."""

    def caption(self, image: Image.Image) -> str:
        """Return the caption of an upright RGB image, on one line."""
        ...


class Masker(Protocol):
    """Finds the important part of images."""

    def mask(self, image: Image.Image) -> SoftMask:
        """Return how probably each pixel of an upright RGB image belongs to it."""
        ...
