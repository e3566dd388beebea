"""Events about the images that a run samples for training: the newest rollout, and choices for a person to make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Mark = Literal["", "best", "worst"]


@dataclass(frozen=True, slots=True)
class SampledImage:
    """An image of a rollout: its file, prompt, reward (None without a score), and the score of each reward model.

    `mark` shows whether it is the best or the worst of its prompt.
    """

    path: str
    prompt: str
    reward: float | None = None
    by_reward_model: Mapping[str, float] = field(default_factory=dict)
    mark: Mark = ""


@dataclass(frozen=True, slots=True)
class RolloutSampled:
    """Images were sampled for the training step `step`, counted from 0; the images of a prompt are contiguous."""

    step: int
    images: tuple[SampledImage, ...]


@dataclass(frozen=True, slots=True)
class ChoicesWanted:
    """The run waits until a person has chosen among images, `num_open` times; the requests are in `path`.

    0 reports that the run continues.
    """

    step: int
    path: str
    num_open: int
