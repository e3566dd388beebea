"""A mask of all pixels that do not have a colour."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from modules.annotators.protocol import Masker, MaskSettings, SoftMask
from modules.data.decode import Rgb, colour_of
from modules.system.errors import DarkroomError


@dataclass(frozen=True, slots=True)
class Colour:
    """Masks out a colour; `tolerance` is the largest difference in any of red, green and blue."""

    colour: Rgb
    tolerance: int

    def mask(self, image: Image.Image) -> SoftMask:
        """Return 0 for the pixels of the colour, 1 for all others."""
        difference = np.abs(np.asarray(image, np.int16) - np.array(self.colour, np.int16)).max(axis=2)
        return np.asarray(difference > self.tolerance, np.float32)


def make_colour(place: Path | None, settings: MaskSettings, device: str) -> Masker:
    """Return the masker. Raises DarkroomError for a text that is not a colour."""
    del place, device
    colour = colour_of(settings.colour)
    if colour is None:
        raise DarkroomError(
            f"{settings.colour!r} is not a colour.", advice="Use a name such as white, or a value such as #ffcc00."
        )
    return Colour(colour, settings.tolerance)
