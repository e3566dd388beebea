"""The report of a check: the problems, and a preview of the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.system.problem import Problem, errors_in

if TYPE_CHECKING:
    from modules.data.datasets import Datasets
    from trainer.preflight.trained_layers import TrainedPart

Progress = Callable[[str, int, int], None]
"""Called with the name of the work, the number of finished units, and their total; may raise to stop."""


def no_progress(_name: str, _done: int, _total: int) -> None:
    """Report nothing."""


@dataclass(frozen=True, slots=True)
class RunFigures:
    """The length of a run and what it needs: the rough time of its steps, and its memory against its device's.

    `device_bytes` is the memory of the card, or of the computer where `on_gpu` is False; None if it is not known.
    """

    seconds: float
    memory_bytes: int
    device_bytes: int | None
    on_gpu: bool


@dataclass(frozen=True, slots=True)
class Preview:
    """The preview of a run, in exact numbers."""

    num_images: int
    num_validation_images: int
    num_without_caption: int
    buckets: tuple[tuple[str, int], ...]
    skipped: tuple[tuple[str, str], ...]
    steps_first_epoch: int
    total_steps: int
    model: str = ""
    """A description of the base model from its files, or of its download."""
    trained: tuple[TrainedPart, ...] = ()
    """The layers that are trained of each part; empty if the model's shapes are not known."""
    memory: str = ""
    """The estimated memory of the run on its training device, and of the computer while the model is read; empty if the
    model's shapes are not known."""
    reward_models: tuple[str, ...] = ()
    """Sentences about the downloads, code and memory of the reward models."""
    passes: str = ""
    """The cost of a step in passes through the denoiser; empty for a method whose steps only denoise."""
    num_prompts: int = 0
    """The number of prompts without an image."""
    num_pairs: int = 0
    """The number of pairs among the images; a pair counts as one image."""
    captions: tuple[tuple[str, str], ...] = ()
    """Files with findings about their captions: missing, empty, in another encoding, long."""
    figures: RunFigures | None = None
    """Time and memory at a glance; None if the model's shapes are not known."""
    done_steps: int = 0
    """The steps that the backup has, from which the run continues."""


@dataclass(frozen=True, slots=True)
class Report:
    """The problems found by a check and, if the images could be read, the preview and the datasets for the run."""

    problems: tuple[Problem, ...]
    preview: Preview | None
    datasets: Datasets | None = None

    @property
    def errors(self) -> list[Problem]:
        """The problems that prevent a start."""
        return errors_in(list(self.problems))
