"""U2-Net (Qin et al. 2020) and IS-Net (Qin et al. 2022) as ONNX files: the foreground of an image.

Input: the image squeezed to a square, divided by its largest value and normalised, (1, 3, side, side). The first output
is a map of the same side; it is stretched to the range from 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from modules.annotators.models.onnx_session import Session, open_session
from modules.annotators.protocol import Masker, MaskSettings, SoftMask

_MEAN = (0.485, 0.456, 0.406)


@dataclass(frozen=True, slots=True)
class Foreground:
    """Finds the foreground with a network of an input of `side_px`, normalised with ImageNet's mean and `std`."""

    session: Session
    side_px: int
    std: tuple[float, float, float]

    def mask(self, image: Image.Image) -> SoftMask:
        """Return how probably each pixel belongs to the foreground."""
        small = image.resize((self.side_px, self.side_px), Image.Resampling.LANCZOS)
        rgb_SS3 = np.asarray(small, np.float32)
        rgb_SS3 = rgb_SS3 / max(float(rgb_SS3.max()), 1e-6)
        normal_SS3 = (rgb_SS3 - np.array(_MEAN, np.float32)) / np.array(self.std, np.float32)
        normal_13SS = np.ascontiguousarray(normal_SS3.transpose(2, 0, 1)[None], np.float32)
        feeds = {self.session.get_inputs()[0].name: normal_13SS}
        found_SS = np.asarray(self.session.run(None, feeds)[0], np.float32)[0, 0]
        least, most = float(found_SS.min()), float(found_SS.max())
        found_SS = (found_SS - least) / max(most - least, 1e-6)
        return resized(found_SS, image.size)


def resized(values: SoftMask, size: tuple[int, int]) -> SoftMask:
    """Return values at another size (width, height), bilinear, from 0 to 1."""
    image = Image.fromarray(values).resize(size, Image.Resampling.BILINEAR)
    return np.asarray(image, np.float32).clip(0, 1)


def make(file: Path | None, settings: MaskSettings, device: str) -> Masker:
    """Return U2-Net. Raises DarkroomError where it cannot be loaded."""
    del settings
    assert file is not None
    return Foreground(open_session(file, device), 320, (0.229, 0.224, 0.225))


def make_isnet(file: Path | None, settings: MaskSettings, device: str) -> Masker:
    """Return IS-Net. Raises DarkroomError where it cannot be loaded."""
    del settings
    assert file is not None
    return Foreground(open_session(file, device), 1024, (1.0, 1.0, 1.0))
