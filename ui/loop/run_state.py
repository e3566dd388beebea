"""The state of a run in the window, a frozen record into which `folding` folds the run's events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainer.timing import Timing
from ui.loop.series import EMPTY, Series, SeriesByName

if TYPE_CHECKING:  # the window needs these classes when a run has begun
    from trainer.events import (
        BackupSaved,
        CacheProgress,
        DownloadProgress,
        ModelSaved,
        RewardMeasured,
        RunFailed,
        RunFinished,
        RunStarted,
        SampleProgress,
        SampleReady,
        StepFinished,
        ValidationFinished,
    )
    from trainer.log_lines import LogLine
    from trainer.machine_events import ImagesReported, MemoryMeasured
    from trainer.rollout_events import ChoicesWanted, RolloutSampled
    from ui.loop.metric_curves import Curves


@dataclass(frozen=True, slots=True)
class RunState:
    """Everything the window shows of a run."""

    phase: str = ""
    detail: str = ""
    started: RunStarted | None = None
    step: StepFinished | None = None
    trained_parts: tuple[str, ...] = ()
    """The parts that some step has trained, also those that are frozen since."""
    series: SeriesByName = field(default_factory=dict)
    metrics: Curves = field(default_factory=dict)
    validations: tuple[ValidationFinished, ...] = ()
    rewards: tuple[RewardMeasured, ...] = ()
    samples: tuple[SampleReady, ...] = ()
    rollout: RolloutSampled | None = None
    choices: ChoicesWanted | None = None
    download: DownloadProgress | None = None
    cache: CacheProgress | None = None
    sampling: SampleProgress | None = None
    memory: MemoryMeasured | None = None
    timing: Timing = field(default_factory=Timing)
    image_report: ImagesReported | None = None
    backup: BackupSaved | None = None
    saves: tuple[ModelSaved, ...] = ()
    log: tuple[LogLine, ...] = ()
    finished: RunFinished | None = None
    failed: RunFailed | None = None

    @property
    def end(self) -> RunFinished | RunFailed | None:
        """How the run ended; None while it trains, and before the first one."""
        return self.failed or self.finished

    @property
    def is_over(self) -> bool:
        """Whether the run has finished or failed."""
        return self.end is not None

    @property
    def run_share(self) -> float:
        """The completed share of the run's steps, 0 to 1."""
        if self.step is not None:
            return _share(self.step.step, self.step.total_steps)
        return _share(self.started.first_step, self.started.total_steps) if self.started else 0.0

    @property
    def epoch_share(self) -> float:
        """The completed share of the epoch's steps, 0 to 1."""
        return _share(self.step.epoch_step, self.step.epoch_steps) if self.step else 0.0

    @property
    def downloading(self) -> DownloadProgress | None:
        """The progress of a download, or of what is sent to another machine; None once it is complete."""
        is_under_way = (
            self.phase in ("loading", "sending") and self.download and self.download.done_mb < self.download.total_mb
        )
        return self.download if is_under_way else None

    @property
    def phase_share(self) -> float | None:
        """The completed share of the current phase, if it can be counted."""
        match self.phase:
            case "loading" | "sending" if self.downloading:
                return _share(self.downloading.done_mb, self.downloading.total_mb)
            case "caching" if self.cache:
                return _share(self.cache.done, self.cache.total)
            case "sampling" if self.sampling:
                return _share(self.sampling.done, self.sampling.total)
            case _:
                return None

    @property
    def seconds_left(self) -> float | None:
        """The seconds left of the phase (downloading, caching) or of the run, including current sampling."""
        match self.phase:
            case "loading":
                return self.downloading.seconds_left if self.downloading else None
            case "caching":
                return self.cache.seconds_left if self.cache else None
            case "sampling" if self.sampling and self.step is None:
                return self.sampling.seconds_left
            case _:
                return self.run_seconds_left

    @property
    def phase_seconds_left(self) -> float | None:
        """The seconds left of the current phase; of the training's epoch while it trains. None if unknown."""
        if self.phase != "training" or self.step is None:
            return (
                self.sampling.seconds_left
                if self.phase == "sampling" and self.sampling
                else (self.seconds_left if self.phase in ("loading", "caching") else None)
            )
        steps_left = self.step.total_steps - self.step.step
        if self.step.seconds_left is None or steps_left <= 0:
            return None
        return self.step.seconds_left / steps_left * (self.step.epoch_steps - self.step.epoch_step)

    @property
    def run_seconds_left(self) -> float | None:
        """The seconds left of the whole run, with the samples of now, and the validations, samples and backups to come.

        None if unknown.
        """
        if self.step is None or self.is_over:
            return None
        seconds_left = self.step.seconds_left
        if (by_clock := self.timing.seconds_left(self.step.total_steps)) is not None:
            seconds_left = max(by_clock, seconds_left or 0.0)
        sampling = self.sampling.seconds_left if self.phase == "sampling" and self.sampling else None
        return seconds_left if sampling is None else (seconds_left or 0.0) + sampling

    def curve(self, name: str) -> Series:
        """Return a curve by its name; an empty one if nothing was reported."""
        return self.series.get(name, EMPTY)

    @property
    def validation(self) -> ValidationFinished | None:
        """The newest validation, which also contains the best so far."""
        return self.validations[-1] if self.validations else None

    @property
    def training_parts(self) -> tuple[str, ...]:
        """The parts of the model that are currently trained."""
        if self.step is not None and self.step.training_parts:
            return self.step.training_parts
        return self.started.trained_parts if self.started else ()


def _share(done: float, total: float) -> float:
    return min(1.0, max(0.0, done / total)) if total > 0 else 0.0
