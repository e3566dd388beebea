"""What a check gives: the findings, and what the run will do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.system.problem import Problem, errors_in

if TYPE_CHECKING:
    from modules.data.datasets import Datasets


@dataclass(frozen=True, slots=True)
class Preview:
    """What a run will do, in numbers that hold."""

    num_images: int
    num_validation_images: int
    num_without_caption: int
    buckets: tuple[tuple[str, int], ...]
    skipped: tuple[tuple[str, str], ...]
    steps_first_epoch: int
    total_steps: int
    model: str = ""
    """What the base model is, as far as its files tell; nothing for a repository that is not here yet."""
    memory: str = ""
    """What the run takes on its training device, estimated; nothing where the model's shapes are not known."""
    reward_models: tuple[str, ...] = ()
    """What the reward models of a reward method need or do, in sentences."""


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of a check and, where the images could be read, the preview and the images, for the run to use."""

    problems: tuple[Problem, ...]
    preview: Preview | None
    datasets: Datasets | None = None

    @property
    def errors(self) -> list[Problem]:
        """The findings that forbid a start."""
        return errors_in(list(self.problems))
