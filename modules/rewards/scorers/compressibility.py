"""JPEG compressibility: the negated size of an image as a JPEG file, a task of DDPO's paper. Needs no file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.rewards.spec import RewardSpec

if TYPE_CHECKING:  # the record is torch-free
    from modules.rewards.protocol import Reward, RewardContext
    from modules.rewards.settings import Scorer

SPEC = RewardSpec(
    "compressibility",
    "JPEG compressibility",
    "How small an image is as a JPEG file: smooth images with few details score high.",
    "modules.rewards.scorers.compressibility:make",
    "minus KB: -300 (noise) to -5 (flat) at 512 px",
    is_differentiable=False,
    own_settings=frozenset({"jpeg_quality"}),
)


def make(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward."""
    from modules.rewards.jpeg_size import JpegSize  # needs Pillow, which the window starts without

    return JpegSize(-1, scorer.jpeg_quality, context.check)
