"""Whether images look drawn, for the choice of a captioner: a rule about their flat areas, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from modules.data.decode import flatten
from modules.data.images import BrokenImageError, open_image, upright
from modules.data.listing import list_images

_SIDE_PX = 192  # of the thumbnail, in which the noise of JPEG files is averaged out
_FLAT, _EDGE = 2, 40  # of 255: the largest difference of neighbours in a flat area, and the least one at an edge
_MIN_FLAT, _MAX_SOFT = 0.5, 0.32  # shares of the pixels without the background
_LEVELS_BITS = 4  # of each channel, for the commonest colour
_MAX_IMAGES = 12


def look_drawn(folder: Path, *, include_subfolders: bool) -> bool:
    """Return whether most images of a folder look drawn: of twelve of them, spread over the folder.

    False without readable images. Raises OSError for a folder that cannot be listed.
    """
    images = list_images(folder, include_subfolders=include_subfolders).images
    answers = _answers(images[:: max(1, len(images) // _MAX_IMAGES)][:_MAX_IMAGES])
    return 2 * sum(answers) > len(answers)


def is_drawn(image: Image.Image) -> bool:
    """Return whether an image in RGB looks drawn: flat areas with hard edges between them.

    In a thumbnail of 192 px, the commonest colour, of 16 levels a channel, is left out: it is often a plain background.
    The largest difference of a pixel's channels from its left and upper neighbours is at most 2 of 255 in a flat
    area, and at least 40 at an edge; between these it changes softly. A drawing is flat in 50 % of the pixels
    that are left, or more, and changes softly in 32 % or less. Noise, shading and blur make that 38 % or more in
    scikit-image's photographs, also on a white background. Any with soft shading counts as a photograph.
    """
    small = image.copy()
    small.thumbnail((_SIDE_PX, _SIDE_PX), Image.Resampling.BOX)
    pixels_HWC = np.asarray(small, dtype=np.int16)
    inner_HWC = pixels_HWC[1:, 1:]
    if inner_HWC.size == 0:
        return False
    steps_HW = np.maximum(abs(inner_HWC - pixels_HWC[1:, :-1]), abs(inner_HWC - pixels_HWC[:-1, 1:])).max(axis=2)
    levels_HWC = inner_HWC >> (8 - _LEVELS_BITS)
    colours_HW = (levels_HWC << np.arange(3) * _LEVELS_BITS).sum(axis=2)
    steps_N = steps_HW[colours_HW != np.bincount(colours_HW.ravel()).argmax()]
    if steps_N.size == 0:
        return False
    flat = float((steps_N <= _FLAT).mean())
    soft = float(((steps_N > _FLAT) & (steps_N < _EDGE)).mean())
    return flat >= _MIN_FLAT and soft <= _MAX_SOFT


def _answers(images: Sequence[Path]) -> list[bool]:
    answers = []
    for path in images:
        try:
            with open_image(path) as raw:
                raw.draft("RGB", (2 * _SIDE_PX, 2 * _SIDE_PX))
                answers.append(is_drawn(flatten(upright(raw))))
        except BrokenImageError:  # the scan reports it
            continue
    return answers
