"""The state of a run in the window: a frozen record, and the pure function that folds events into it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar, assert_never

from trainer.events import (
    BackupSaved,
    BlocksCompiled,
    CacheFilled,
    CacheProgress,
    DownloadProgress,
    Event,
    ImagesDropped,
    MemoryMeasured,
    ModelSaved,
    PhaseChanged,
    ProfileWritten,
    RewardMeasured,
    RunFailed,
    RunFinished,
    RunStarted,
    SampleProgress,
    SampleReady,
    SettingChosen,
    StepFinished,
    ValidationFinished,
    WarningRaised,
)
from trainer.rollout_events import ChoicesWanted, RolloutSampled
from trainer.run_folder.event_log import outlasts
from ui.loop.metric_curves import Curves, gradient_norms, join_curves, rate_metrics, with_metrics
from ui.loop.series import EMPTY, Series, SeriesByName, join_series, with_values
from ui.loop.wording import LogLine, line_of


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of the wall clock in seconds: of the first step and of the newest, and of pauses between them.

    `first_step` is the number of the first step of this run, which may be resumed.
    """

    first_step: int = 0
    first_at: float | None = None
    newest_step: int = 0
    newest_at: float = 0.0
    paused_at: float | None = None
    paused_seconds: float = 0.0

    def after_step(self, step: int, at_seconds: float) -> Timing:
        """Return the timing after a step."""
        if self.first_at is None:
            return replace(self, first_step=step, first_at=at_seconds, newest_step=step, newest_at=at_seconds)
        return replace(self, newest_step=step, newest_at=at_seconds)

    def after_phase(self, phase: str, at_seconds: float) -> Timing:
        """Return the timing after a change of the phase: a pause does not count."""
        if phase == "paused":
            return self if self.paused_at is not None else replace(self, paused_at=at_seconds)
        if self.paused_at is None:
            return self
        seconds = at_seconds - self.paused_at if self.first_at is not None else 0.0
        return replace(self, paused_at=None, paused_seconds=self.paused_seconds + seconds)

    def seconds_left(self, total_steps: int) -> float | None:
        """Return the seconds until the last step, with the validations, samples and backups that are to come.

        None before the second step.
        """
        num_steps = self.newest_step - self.first_step
        if self.first_at is None or num_steps < 1:
            return None
        seconds = max(0.0, self.newest_at - self.first_at - self.paused_seconds)
        return seconds / num_steps * max(0, total_steps - self.newest_step)


MAX_LOG_LINES = 1000


@dataclass(frozen=True, slots=True)
class RunState:
    """Everything the window shows of a run."""

    phase: str = ""
    detail: str = ""
    started: RunStarted | None = None
    step: StepFinished | None = None
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
    backup: BackupSaved | None = None
    saves: tuple[ModelSaved, ...] = ()
    log: tuple[LogLine, ...] = ()
    finished: RunFinished | None = None
    failed: RunFailed | None = None

    @property
    def is_over(self) -> bool:
        """Whether the run has finished or failed."""
        return self.finished is not None or self.failed is not None

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
        """The progress of a download; None once it is complete."""
        is_under_way = self.phase == "loading" and self.download and self.download.done_mb < self.download.total_mb
        return self.download if is_under_way else None

    @property
    def phase_share(self) -> float | None:
        """The completed share of the current phase, if it can be counted."""
        match self.phase:
            case "loading" if self.downloading:
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
            case "sampling" if self.sampling and self.sampling.seconds_left is not None:
                return self.sampling.seconds_left + ((self.step.seconds_left or 0.0) if self.step else 0.0)
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
        """The seconds left of the whole run, with the validations, samples and backups to come. None if unknown."""
        if self.step is None or self.is_over:
            return None
        seconds_left = self.timing.seconds_left(self.step.total_steps)
        return self.step.seconds_left if seconds_left is None else max(seconds_left, self.step.seconds_left or 0.0)

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


def fold(state: RunState, event: Event, at_seconds: float) -> RunState:
    """Return the state after an event that arrived at a time of the wall clock (seconds since 1970)."""
    line = line_of(event, at_seconds)
    log = (*state.log[-MAX_LOG_LINES + 1 :], line) if line else state.log
    timing = state.timing
    if isinstance(event, StepFinished):
        timing = timing.after_step(event.step, at_seconds)
    elif isinstance(event, PhaseChanged):
        timing = timing.after_phase(event.phase, at_seconds)
    return replace(_fold_event(state, event), log=log, timing=timing)


def _fold_event(state: RunState, event: Event) -> RunState:  # noqa: C901 - one arm for each kind of event
    match event:
        case RunStarted():
            return replace(state, started=event)
        case PhaseChanged():
            return replace(state, phase=event.phase, detail=event.detail, download=None, cache=None, sampling=None)
        case DownloadProgress():
            return replace(state, download=event)
        case CacheProgress():
            return replace(state, cache=event)
        case StepFinished():
            series = with_values(state.series, event.step, values_of(event))
            reported = {**event.metrics, **gradient_norms(event), **rate_metrics(event.effective_rates)}
            metrics = with_metrics(state.metrics, event.step, reported)
            return replace(state, step=event, series=series, metrics=metrics)
        case ValidationFinished():
            measured = {f"{name}/validation": value for name, value in event.metrics.items()}
            metrics = with_metrics(state.metrics, event.step, measured)
            return replace(state, validations=(*state.validations, event), metrics=metrics)
        case RewardMeasured():
            return replace(state, rewards=(*state.rewards, event))
        case RolloutSampled():
            return replace(state, rollout=event)
        case ChoicesWanted():
            return replace(state, choices=event if event.num_open else None)
        case MemoryMeasured():
            return replace(state, memory=event)
        case SampleProgress():
            return replace(state, sampling=event)
        case SampleReady():
            return replace(state, samples=(*state.samples, event))
        case BackupSaved():
            return replace(state, backup=event)
        case ModelSaved():
            return replace(state, saves=(*state.saves, event))
        case RunFinished():
            return replace(state, finished=event, phase="", detail="")
        case RunFailed():
            return replace(state, failed=event, phase="", detail="")
        case CacheFilled() | ImagesDropped() | BlocksCompiled() | SettingChosen() | ProfileWritten() | WarningRaised():
            return state  # only a log line
        case _:
            assert_never(event)


def values_of(step: StepFinished) -> list[tuple[str, float | None]]:
    """Return the values of a step by the names of their curves; learning rates by unit, unless all are the same."""
    rates = step.effective_rates or step.learning_rates
    by_name: list[tuple[str, float | None]] = [("loss", step.loss), ("smoothed", step.smoothed_loss)]
    if len(set(rates.values())) == 1:
        by_name.append(("rate", next(iter(rates.values()))))
    else:
        by_name += [(f"rate/{unit}", rate) for unit, rate in rates.items()]
    if step.gradient_norm is not None:
        by_name.append(("gradient_norm", step.gradient_norm))
    if "reward" in step.metrics:
        by_name.append(("reward", step.metrics["reward"]))
    return by_name


def history_before(events: Iterable[Event], *, until_step: int) -> RunState:
    """Return the curves, samples, measurements and newest rollout of a run's earlier attempts, up to a step.

    For a step with several attempts, the last one counts: the run was resumed from it. What an attempt did after the
    step that the next one resumes from is lost, except for its saved models, whose files remain.
    """
    newest: dict[tuple[type[Event], int, int], _StepEvent] = {}
    for event in events:
        if isinstance(event, RunStarted):
            newest = {k: e for k, e in newest.items() if isinstance(e, ModelSaved) or outlasts(e.step, event)}
        elif isinstance(event, _StepEvent) and event.step <= until_step:
            newest[type(event), event.step, _place(event)] = event
    state = RunState()
    for _, event in sorted(newest.items(), key=lambda item: item[0][1:]):
        state = _fold_event(state, event)
    return state


def _place(event: Event) -> int:
    """Return the number that distinguishes the samples and the saves of a step; 0 for other events."""
    match event:
        case SampleReady():
            return 2 * event.index + event.is_without_ema
        case ModelSaved():
            return 1 + ("", "validation", "reward").index(event.best_by) + 3 * event.is_final
        case _:
            return 0


def prepend_history(before: RunState, now: RunState) -> RunState:
    """Return the state of a resumed run, preceded by its history."""
    return replace(
        now,
        series=join_series(before.series, now.series),
        metrics=join_curves(before.metrics, now.metrics),
        rollout=now.rollout or before.rollout,
        validations=(*_drop_repeated(before.validations, now.validations), *now.validations),
        rewards=(*_drop_repeated(before.rewards, now.rewards), *now.rewards),
        samples=(*_drop_repeated(before.samples, now.samples), *now.samples),
        saves=(*before.saves, *now.saves),
    )


_StepEvent = StepFinished | ValidationFinished | RewardMeasured | RolloutSampled | SampleReady | ModelSaved
_MeasuredEvent = TypeVar("_MeasuredEvent", ValidationFinished, RewardMeasured, SampleReady)


def _drop_repeated(before: Iterable[_MeasuredEvent], now: Iterable[_MeasuredEvent]) -> Iterator[_MeasuredEvent]:
    """Yield the earlier events of steps without a newer event."""
    steps = {event.step for event in now}
    return (event for event in before if event.step not in steps)


def _share(done: float, total: float) -> float:
    return min(1.0, max(0.0, done / total)) if total > 0 else 0.0
