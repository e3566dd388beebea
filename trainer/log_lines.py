"""The lines of a run's log: events as text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from modules.system.paths import as_config_path
from modules.system.problem import count, describe_data
from trainer import events
from trainer.wording import PHASE_LABELS, describe_validation, reward_line

Tone = Literal["plain", "good", "warning", "error"]


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of the run's log: its time, text and tone."""

    at_seconds: float
    text: str
    tone: Tone = "plain"


def line_of(event: events.Event, at_seconds: float) -> LogLine | None:
    """Return the log line of an event; progress events have none."""
    described = _describe_event(event)
    return LogLine(at_seconds, *described) if described else None


def _describe_event(event: events.Event) -> tuple[str, Tone] | None:
    if isinstance(event, events.SummarizedEvent):
        return event.summary, "plain"
    match event:
        case events.RunStarted():
            return _describe_start(event), "plain"
        case events.PhaseChanged(phase=phase, detail=detail):
            label = PHASE_LABELS.get(phase, phase)
            return f"{label}: {detail}" if detail else label, "plain"
        case events.ValidationFinished():
            return f"Validation loss {describe_validation(event)}", "plain"
        case events.RewardMeasured():
            return reward_line(event), "plain"
        case events.BackupSaved():
            return f"Backup at step {event.step:,}: {Path(event.path).name}", "plain"
        case events.ModelSaved(is_final=True):
            loading = f" ({event.loading_words})" if event.loading_words else ""
            return f"Final model saved: {as_config_path(Path(event.path))}{loading}", "good"
        case events.ModelSaved():
            return f"Saved at step {event.step:,}: {Path(event.path).name}", "plain"
        case _:
            return _describe_ending(event)


def _describe_ending(event: events.Event) -> tuple[str, Tone] | None:
    match event:
        case events.WarningRaised():
            return f"{event.message} {event.advice}".strip(), "warning"
        case events.RunFinished():
            return event.message, "good"
        case events.RunFailed():
            return event.text, "error"
        case _:
            return None


def _describe_start(event: events.RunStarted) -> str:
    images = describe_data(event.num_images, event.num_prompts, event.num_pairs)
    start = f", resuming at step {event.first_step:,}" if event.first_step else ""
    weights = f"{event.num_trainable_parameters:,} trainable parameters"
    return f"{count(event.total_steps, 'step')} over {images}{start}; {weights} on {event.device}"
