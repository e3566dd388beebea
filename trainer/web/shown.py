"""The events of a run as the page gets them: small records without paths."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trainer import events
from trainer.event_lines import from_line
from trainer.log_lines import line_of
from trainer.run_folder.records import time_of
from trainer.web.runs import image_id
from trainer.wording import PHASE_LABELS, reading_of, reward_line

Shown = dict[str, Any]

_OF_STEP = '{"event": "StepFinished"'
_OF_MEASUREMENT, _OF_START = '{"event": "RewardMeasured"', '{"event": "RunStarted"'
_MAX_STEPS, _MAX_LOG_LINES = 600, 300  # of what happened before the page was opened


def shown_history(lines: Sequence[str], run_dir: Path) -> list[Shown]:
    """Return the events of a log: of many steps some, evenly spread, and only the newest lines of the log."""
    steps = [number for number, line in enumerate(lines) if line.startswith(_OF_STEP)]
    stride = max(1, -(-len(steps) // _MAX_STEPS))
    dropped = set(steps) - set(steps[::-1][::stride])
    shown = [one for n, line in enumerate(lines) if n not in dropped and (one := shown_line(line, run_dir)) is not None]
    logged = [one for one in shown if "log" in one]
    for one in logged[:-_MAX_LOG_LINES]:
        del one["log"]
    return [one for one in shown if len(one) > 1]


def shown_line(line: str, run_dir: Path) -> Shown | None:
    """Return the data that the page shows for a line of the log; None for a line that it does not show."""
    event = from_line(line)
    if event is None:
        return None
    shown = _facts_of(event, run_dir)
    at_seconds = 0.0 if isinstance(event, events.StepFinished) else time_of(line) or 0.0
    if isinstance(event, events.SampleReady):
        shown["at"] = at_seconds  # a resumed run may write another image under its name
    if (log := line_of(event, at_seconds)) is not None:
        shown["log"] = {"at": log.at_seconds, "text": log.text, "tone": log.tone}
    return shown if shown["kind"] or "log" in shown else None


def has_measurement(lines: Sequence[str]) -> bool:
    """Return whether a reward was measured in some lines of a log."""
    return any(line.startswith(_OF_MEASUREMENT) for line in lines)


class Verdict:
    """The verdict on the measured rewards of a run, as its log grows."""

    def __init__(self) -> None:
        self._measured: list[events.RewardMeasured] = []
        self._last_step = ""

    def add(self, lines: Sequence[str]) -> Shown:
        """Read further lines of the log, and return the verdict so far; empty if no training reward was measured.

        Measurements of an attempt after the step from which the next one resumes do not count.
        """
        for line in lines:
            if line.startswith(_OF_STEP):
                self._last_step = line
            event = from_line(line) if line.startswith((_OF_MEASUREMENT, _OF_START)) else None
            if isinstance(event, events.RewardMeasured):
                self._measured.append(event)
            elif isinstance(event, events.RunStarted):
                self._measured = [m for m in self._measured if m.step <= event.first_step]
        newest = from_line(self._last_step)
        kl = _finite(newest.metrics.get("kl")) if isinstance(newest, events.StepFinished) else None
        reading = reading_of(self._measured, kl)
        if reading is None:
            return {}
        last = self._measured[-1]
        values = {"diversity": last.diversity, "saturation": last.saturation}
        known = [f"{name} {value:.3g}" for name, value in values.items() if value is not None]
        figures = ", ".join([reward_line(last), *known])
        return {"finding": reading.finding, "title": reading.title, "reason": reading.reason, "figures": f"{figures}."}


def _facts_of(event: events.Event, run_dir: Path) -> Shown:
    make = _SHOWN.get(type(event))
    return {"kind": ""} if make is None else make(event, run_dir)


def _start(event: events.RunStarted, _run_dir: Path) -> Shown:
    return {"kind": "started", "first": event.first_step, "total": event.total_steps}


def _phase(event: events.PhaseChanged, _run_dir: Path) -> Shown:
    return {"kind": "phase", "phase": event.phase, "label": PHASE_LABELS.get(event.phase, ""), "detail": event.detail}


def _step(event: events.StepFinished, _run_dir: Path) -> Shown:
    return {
        "kind": "step",
        "step": event.step,
        "total": event.total_steps,
        "epoch": event.epoch,
        "epochs": event.epochs,
        "loss": _finite(event.loss),
        "smooth": _finite(event.smoothed_loss),
        "reward": _finite(event.metrics.get("reward")),
        "speed": _finite(event.images_per_second),
    }


def _validation(event: events.ValidationFinished, _run_dir: Path) -> Shown:
    return {"kind": "validation", "step": event.step, "loss": _finite(event.loss)}


def _reward(event: events.RewardMeasured, _run_dir: Path) -> Shown:
    value = event.followed if event.held_out is None else event.held_out
    return {"kind": "measured", "step": event.step, "reward": _finite(value)}


def _sample(event: events.SampleReady, run_dir: Path) -> Shown:
    row = f"{event.index}{' without EMA' if event.is_without_ema else ''}"
    prompt = f"{event.prompt}{' (without EMA)' if event.is_without_ema else ''}"
    return {"kind": "sample", "step": event.step, "row": row, "prompt": prompt, "id": image_id(event.path, run_dir)}


def _end(event: events.RunFinished | events.RunFailed, _run_dir: Path) -> Shown:
    return {"kind": "end", "status": event.status.value, "label": event.status.label, "text": event.text}


_SHOWN: dict[type, Callable[[Any, Path], Shown]] = {
    events.RunStarted: _start,
    events.PhaseChanged: _phase,
    events.StepFinished: _step,
    events.ValidationFinished: _validation,
    events.RewardMeasured: _reward,
    events.SampleReady: _sample,
    events.RunFinished: _end,
    events.RunFailed: _end,
}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
