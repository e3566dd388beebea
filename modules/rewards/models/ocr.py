"""Readable text: text recognition by RapidOCR, which runs PaddleOCR's models with ONNX Runtime on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from modules.rewards.pillow_images import pillow_images
from modules.rewards.protocol import Reward, RewardContext
from modules.rewards.quoted_text import quoted_text, text_score
from modules.rewards.registry import REWARDS
from modules.rewards.settings import Scorer
from modules.system.errors import DarkroomError


@dataclass(frozen=True, slots=True)
class Ocr:
    """Scores how completely `read(image)` finds the quoted text of the prompt, 0 to 1; NaN without a quoted text.

    `check()` runs before each image.
    """

    read: Callable[[Image.Image], str]
    check: Callable[[], None]
    is_differentiable: bool = False

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the scores (B,)."""
        scores = []
        for image, prompt in zip(pillow_images(images_B3PP), prompts, strict=True):
            self.check()
            wanted = quoted_text(prompt)
            scores.append(text_score(wanted, self.read(image)) if wanted else math.nan)
        return images_B3PP.new_tensor(scores)


def load_reader() -> Callable[[Image.Image], str]:
    """Return a function that returns the text in an image, its lines with spaces between.

    The models are in the package. Raises DarkroomError where a package is missing.
    """
    try:
        from rapidocr import RapidOCR

        engine = RapidOCR(params={"Global.log_level": "critical"})
    except ImportError as error:
        package = REWARDS["ocr"].packages[0]
        raise DarkroomError(
            f"{REWARDS['ocr'].label} needs the package {package.name}, which cannot be loaded ({error}).",
            advice=f"{package.install}, or choose another reward model.",
        ) from error

    def read(image: Image.Image) -> str:
        bgr_PP3 = np.ascontiguousarray(np.asarray(image)[:, :, ::-1])
        return " ".join(engine(bgr_PP3).txts or ())

    return read


def make(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward, loaded. Raises DarkroomError where a package is missing."""
    return Ocr(load_reader(), context.check)
