"""Readable text: text recognition by RapidOCR, which runs PaddleOCR's models with ONNX Runtime on the CPU."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from modules.rewards.measures import pillow_images
from modules.rewards.protocol import Reward, RewardContext
from modules.rewards.registry import REWARDS
from modules.rewards.settings import Scorer
from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason

_QUOTED = re.compile('"([^"]+)"|\u201c([^\u201d]+)\u201d|\u201e([^\u201c]+)\u201c|\u00ab([^\u00bb]+)\u00bb')


def quoted_text(prompt: str) -> str:
    """Return the text within double quotation marks of a prompt, straight or typographic; several with spaces between.

    Empty if there is none: apostrophes are not quotation marks.
    """
    return " ".join("".join(groups).strip() for groups in _QUOTED.findall(prompt)).strip()


def text_score(wanted: str, read: str) -> float:
    """Return how completely a text was read: 1 - distance / length of the text, 0 to 1.

    The Levenshtein distance without spaces and capitals, as in Flow-GRPO (Liu et al. 2025); 1 where the text is part of
    what was read.
    """
    wanted, read = (re.sub(r"\s", "", text).casefold() for text in (wanted, read))
    if not wanted or wanted in read:
        return 1.0
    return 1.0 - min(edit_distance(wanted, read), len(wanted)) / len(wanted)


def edit_distance(one: str, other: str) -> int:
    """Return the Levenshtein distance: the fewest insertions, deletions and replacements of single characters."""
    row = list(range(len(other) + 1))
    for i, left in enumerate(one, 1):
        before, row[0] = row[0], i
        for j, right in enumerate(other, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (left != right))
    return row[-1]


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
            f"{REWARDS['ocr'].label} needs the package {package.name}, which cannot be loaded ({plain_reason(error)}).",
            advice=f"{package.install}, or choose another reward model.",
            remedy="packages",
        ) from error

    def read(image: Image.Image) -> str:
        bgr_PP3 = np.ascontiguousarray(np.asarray(image)[:, :, ::-1])
        return " ".join(engine(bgr_PP3).txts or ())

    return read


def make_ocr(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward, loaded. Raises DarkroomError where a package is missing."""
    return Ocr(load_reader(), context.check)
