"""The size of an image as a JPEG file, which the compressibility and incompressibility rewards are computed from."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.rewards.pillow_images import pillow_images

if TYPE_CHECKING:  # see `scorers/`
    import torch
    from PIL import Image


@dataclass(frozen=True, slots=True)
class JpegSize:
    """Scores an image by `sign` times its size as a JPEG in KB (1000 bytes). `check()` runs before each image."""

    sign: int
    quality: int
    check: Callable[[], None]
    is_differentiable: bool = False

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the scores (B,)."""
        sizes_kb = []
        for image in pillow_images(images_B3PP):
            self.check()
            sizes_kb.append(jpeg_kb(image, self.quality))
        return self.sign * images_B3PP.new_tensor(sizes_kb)


def jpeg_kb(image: Image.Image, quality: int) -> float:
    """Return the size of an image as a JPEG at a quality of 1 to 95, in KB (1000 bytes)."""
    file = io.BytesIO()
    image.save(file, format="JPEG", quality=quality)
    return len(file.getvalue()) / 1000
