"""Rewards that need no file: simple measures of an image's pixels and of its size as a JPEG file.

The records and the code are together: the code only calls methods of tensors, so torch is imported for types alone.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from modules.rewards.spec import RewardSpec
from modules.system.errors import DarkroomError
from modules.system.problem import quote

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from modules.rewards.protocol import Reward, RewardContext
    from modules.rewards.settings import Scorer


def parse_colour(text: str) -> tuple[float, float, float]:
    """Return red, green and blue in [0, 1] of "#rrggbb". Raises DarkroomError for anything else."""
    if not re.fullmatch(r"#?[0-9a-fA-F]{6}", text.strip()):
        raise DarkroomError(f"{quote(text)} is not a valid colour.", advice="Enter it as #rrggbb, for example #ff8000.")
    digits = text.strip().removeprefix("#")
    red, green, blue = (int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4))
    return red, green, blue


_REC_709 = (0.2126, 0.7152, 0.0722)


def luma(images_B3PP: torch.Tensor) -> torch.Tensor:
    """Return the luma (B, P, P) of images in [0, 1]: a weighted sum of their values as stored (ITU-R BT.709)."""
    red_BPP, green_BPP, blue_BPP = images_B3PP.unbind(dim=1)
    red, green, blue = _REC_709
    return red * red_BPP + green * green_BPP + blue * blue_BPP


def pillow_images(images_B3PP: torch.Tensor) -> list[Image.Image]:
    """Return images in [0, 1] as RGB images, rounded to 256 levels like saved samples."""
    from PIL import Image  # the window starts without Pillow

    levels_BPP3 = (images_B3PP.detach().float().clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1)
    return [Image.fromarray(levels_PP3.numpy(force=True)) for levels_PP3 in levels_BPP3]


@dataclass(frozen=True, slots=True)
class Measure:
    """Scores images in [0, 1] by a function of their pixels, whatever their prompts: (B, 3, P, P) to (B,)."""

    measure: Callable[[torch.Tensor], torch.Tensor]
    is_differentiable: bool = True

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the scores (B,)."""
        return self.measure(images_B3PP)


@dataclass(frozen=True, slots=True)
class JpegSize:
    """Scores an image by `sign` times its size as a JPEG in KB (1000 bytes), a task of DDPO's paper.

    `check()` runs before each image.
    """

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


BRIGHTNESS = RewardSpec(
    "brightness",
    "Brightness",
    "The mean brightness of an image.",
    "modules.rewards.measures:make_brightness",
    "0 (black) to 1 (white)",
)


def brightness(images_B3PP: torch.Tensor) -> torch.Tensor:
    """Return how bright images are (B,), 0 to 1: the simplest reward, and a good first test."""
    return images_B3PP.flatten(1).mean(dim=1)


def make_brightness(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward."""
    return Measure(brightness)


COLOUR_TARGET = RewardSpec(
    "colour_target",
    "Target colour",
    "How close the pixels of an image are to a colour.",
    "modules.rewards.measures:make_colour_target",
    "-1 (farthest) to 0 (only that colour)",
    checks={"colour": parse_colour},
)


def closeness_to_colour(images_B3PP: torch.Tensor, colour: tuple[float, float, float]) -> torch.Tensor:
    """Return the negated mean squared distances (B,) from a colour: red, green and blue in [0, 1]."""
    colour_311 = images_B3PP.new_empty(3, 1, 1)
    for channel_11, value in zip(colour_311, colour, strict=True):
        channel_11.fill_(value)  # `new_tensor` would make the host wait for a GPU
    return -(images_B3PP - colour_311).square().flatten(1).mean(dim=1)


def make_colour_target(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward for the colour in the settings. Raises DarkroomError where it is not valid."""
    return Measure(partial(closeness_to_colour, colour=parse_colour(scorer.colour)))


CONTRAST = RewardSpec(
    "contrast",
    "Contrast",
    "How much light and dark differ within an image.",
    "modules.rewards.measures:make_contrast",
    "0 (uniform) to 0.5 (half black, half white)",
)

_TINY = 1e-12  # the gradient of the square root is infinite at 0


def contrast(images_B3PP: torch.Tensor) -> torch.Tensor:
    """Return the standard deviations (B,) of the images' luma, 0 to 0.5."""
    return (luma(images_B3PP).flatten(1).var(dim=1, correction=0) + _TINY).sqrt()


def make_contrast(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward."""
    return Measure(contrast)


SHARPNESS = RewardSpec(
    "sharpness",
    "Sharpness",
    "How much fine detail an image has. Noise counts as detail.",
    "modules.rewards.measures:make_sharpness",
    "0 (uniform) and up",
)


def sharpness(images_B3PP: torch.Tensor) -> torch.Tensor:
    """Return how much each pixel's luma differs from its four neighbours (B,). Noise counts as sharpness too.

    It is the variance of the Laplacian (Pech-Pacheco et al. 2000), `up + down + left + right - 4 centre`, over all
    pixels with four neighbours.
    """
    luma_BPP = luma(images_B3PP)
    left_and_right_BPP = luma_BPP[:, 1:-1, :-2] + luma_BPP[:, 1:-1, 2:]
    up_and_down_BPP = luma_BPP[:, :-2, 1:-1] + luma_BPP[:, 2:, 1:-1]
    laplacian_BPP = left_and_right_BPP + up_and_down_BPP - 4 * luma_BPP[:, 1:-1, 1:-1]
    return laplacian_BPP.flatten(1).var(dim=1, correction=0)


def make_sharpness(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward."""
    return Measure(sharpness)


SYMMETRY = RewardSpec(
    "symmetry",
    "Symmetry",
    "How similar the left and the right half of an image are.",
    "modules.rewards.measures:make_symmetry",
    "-1 (opposite) to 0 (mirrored)",
)


def symmetry(images_B3PP: torch.Tensor) -> torch.Tensor:
    """Return how similar the left and the right half of images are (B,): the negated mean squared difference."""
    return -(images_B3PP - images_B3PP.flip(-1)).square().flatten(1).mean(dim=1)


def make_symmetry(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward."""
    return Measure(symmetry)


COMPRESSIBILITY = RewardSpec(
    "compressibility",
    "JPEG compressibility",
    "How small an image is as a JPEG file: smooth images with few details score high.",
    "modules.rewards.measures:make_compressibility",
    "minus KB: -300 (noise) to -5 (flat) at 512 px",
    is_differentiable=False,
    own_settings=frozenset({"jpeg_quality"}),
)


def make_compressibility(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward."""
    return JpegSize(-1, scorer.jpeg_quality, context.check)


INCOMPRESSIBILITY = RewardSpec(
    "incompressibility",
    "JPEG incompressibility",
    "How large an image is as a JPEG file: images with many details score high.",
    "modules.rewards.measures:make_incompressibility",
    "KB: 5 (flat) to 300 (noise) at 512 px",
    is_differentiable=False,
    own_settings=frozenset({"jpeg_quality"}),
)


def make_incompressibility(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward."""
    return JpegSize(1, scorer.jpeg_quality, context.check)
