"""Folding the events of a run into its state: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar, assert_never

from trainer.events import (
    BackupSaved,
    CacheFilled,
    CacheProgress,
    DownloadProgress,
    Event,
    ImagesDropped,
    ModelSaved,
    PhaseChanged,
    RewardMeasured,
    RunFailed,
    RunFinished,
    RunStarted,
    SampleProgress,
    SampleReady,
    StepFinished,
    ValidationFinished,
    WarningRaised,
)
from trainer.log_lines import line_of
from trainer.machine_events import (
    BlocksCompiled,
    ImagesReported,
    MemoryMeasured,
    PaceMeasured,
    ProfileWritten,
    SettingChosen,
)
from trainer.rollout_events import ChoicesWanted, RolloutSampled
from trainer.run_folder.event_log import outlasts
from ui.loop.metric_curves import gradient_norms, join_curves, rate_metrics, with_metrics
from ui.loop.run_state import RunState
from ui.loop.series import join_series, with_values

MAX_LOG_LINES = 1000


def fold(state: RunState, event: Event, at_seconds: float) -> RunState:
    """Return the state after an event that arrived at a time of the wall clock (seconds since 1970)."""
    line = line_of(event, at_seconds)
    log = (*state.log[-MAX_LOG_LINES + 1 :], line) if line else state.log
    timing = state.timing
    if isinstance(event, StepFinished):
        timing = timing.after_step(event.step, at_seconds)
    elif isinstance(event, PhaseChanged):
        timing = timing.after_phase(event.phase, at_seconds)
    elif isinstance(event, RunStarted):
        timing = timing.after_start(at_seconds)
    elif isinstance(event, RunFinished | RunFailed):
        timing = timing.after_end(at_seconds)
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
            parts = state.trained_parts
            if not set(event.training_parts) <= set(parts):
                parts = tuple(dict.fromkeys((*parts, *event.training_parts)))
            return replace(state, step=event, trained_parts=parts, series=series, metrics=metrics)
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
        case ImagesReported():
            return replace(state, image_report=event)
        case BackupSaved():
            return replace(state, backup=event)
        case ModelSaved():
            return replace(state, saves=(*state.saves, event))
        case RunFinished():
            return replace(state, finished=event, phase="", detail="")
        case RunFailed():
            return replace(state, failed=event, phase="", detail="")
        case (
            CacheFilled()
            | ImagesDropped()
            | BlocksCompiled()
            | SettingChosen()
            | ProfileWritten()
            | PaceMeasured()
            | WarningRaised()
        ):
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
        trained_parts=tuple(dict.fromkeys((*before.trained_parts, *now.trained_parts))),
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
