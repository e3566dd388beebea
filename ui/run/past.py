"""Earlier runs as the window shows a run: their state, folded from the log. No Tk."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from trainer.events import RunStarted, StepFinished
from trainer.run_folder.records import timed_events
from ui.run.run_state import RunState, fold, history_before


def past_state(run_dir: Path) -> RunState:
    """Return the state of a run that is over: its curves and samples, its log, and how its last attempt ended.

    Reads the whole log: for a background thread.
    """
    timed = list(timed_events(run_dir))
    history = history_before((event for _, event in timed), until_step=sys.maxsize)
    state = RunState()
    for at_seconds, event in timed:
        if isinstance(event, RunStarted):
            state = replace(state, finished=None, failed=None)
        if not isinstance(event, StepFinished):  # the history has them, each once
            state = fold(state, event, at_seconds)
    return replace(
        state,
        phase="",
        detail="",
        step=history.step,
        series=history.series,
        metrics=history.metrics,
        validations=history.validations,
        rewards=history.rewards,
        samples=history.samples,
        rollout=history.rollout,
        choices=None,
    )
