"""Output of a run: progress on a terminal, lines in a log, or JSON lines for a program, whose commands are read."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TextIO

from modules.families.registry import FAMILIES
from modules.system.paths import from_root
from modules.system.problem import count, describe_data
from trainer import commands
from trainer.cli.program import silence
from trainer.event_lines import to_line
from trainer.events import (
    BackupSaved,
    CacheProgress,
    DownloadProgress,
    Event,
    ModelSaved,
    PhaseChanged,
    RewardMeasured,
    RunFailed,
    RunFinished,
    RunStarted,
    SampleProgress,
    SampleReady,
    StepFinished,
    SummarizedEvent,
    ValidationFinished,
    WarningRaised,
)
from trainer.rollout_events import ChoicesWanted
from trainer.run_folder.inbox import Desk, open_inbox
from trainer.wording import format_speed, part_label

_SECONDS_BETWEEN_LINES = 10.0


class Listener(Protocol):
    """Shows the events of a run."""

    def show(self, event: Event) -> None:
        """Show an event."""
        ...

    def close(self) -> None:
        """Restore the terminal."""
        ...


class JsonLines:
    """Prints every event as a line of JSON on standard output.

    A reader that has ended, such as the killed parent of this process, does not end the run: it stops cleanly, with a
    backup, because its standard input is closed, too.
    """

    def __init__(self) -> None:
        self._has_reader = True

    def show(self, event: Event) -> None:
        """Write the event."""
        if not self._has_reader:
            return
        try:
            print(to_line(event), flush=True)
        except OSError:  # a closed pipe
            self._has_reader = False
            silence(sys.stdout)

    def close(self) -> None:
        """Nothing to close."""


def reading_commands(desk: Desk, leave: Callable[[], object], *, file: str = "") -> AbstractContextManager[None]:
    """Put the commands of the program that reads the JSON lines on a desk, while the context is open.

    They come at the end of a file or, without one, from standard input, which ends with that program: then `leave` is
    called.
    """
    if file:
        return open_inbox(from_root(file), desk)
    threading.Thread(target=_read_commands, args=(desk, leave), name="darkroom-commands", daemon=True).start()
    return nullcontext()


def _read_commands(desk: Desk, leave: Callable[[], object]) -> None:
    for line in sys.stdin:
        command = commands.from_line(line)
        if command is not None:
            desk.put(command)
    with suppress(OSError):  # a closed terminal
        print("Standard input has ended, and with it this command.", file=sys.stderr, flush=True)
    leave()


class OtherProcess:
    """Shows warnings and failures of a process that is not the main one, with its name, on standard error."""

    def __init__(self, name: str) -> None:
        self._name = name

    def show(self, event: Event) -> None:
        """Write the event if it is a warning or a failure."""
        if isinstance(event, WarningRaised | RunFailed):
            with suppress(OSError):  # a closed terminal
                print(f"{self._name}: {words(event)}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing to close."""


class Meter:
    """A progress bar on a terminal, occasional lines otherwise.

    Once the terminal was closed, or the reader has ended, nothing is shown any more.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._bar: Any = None
        self._bar_name = ""
        self._last_line = 0.0

    def progress(self, name: str, done: int, total: int, detail: str) -> None:
        """Show the progress of the work called `name`; a new name starts a new bar."""
        with self._if_open():
            self._progress(name, done, total, detail)

    def _progress(self, name: str, done: int, total: int, detail: str) -> None:
        if not self._is_terminal:
            now = time.monotonic()
            if done >= total or now - self._last_line >= _SECONDS_BETWEEN_LINES:
                self._last_line = now
                self.line(f"{name} {done}/{total} {detail}".rstrip())
            return
        if self._bar is None or self._bar_name != name:
            from tqdm import tqdm

            self.close()
            self._bar = tqdm(total=total, desc=name, file=self._stream, dynamic_ncols=True, initial=done)
            self._bar_name = name
        self._bar.n = done
        self._bar.set_postfix_str(detail, refresh=False)
        self._bar.refresh()

    def line(self, text: str) -> None:
        """Write a line, below the bar if there is one."""
        with self._if_open():
            self.close()
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Close the bar and leave it on the screen."""
        bar, self._bar = self._bar, None
        if bar is not None:
            with self._if_open():
                bar.close()

    @contextmanager
    def _if_open(self) -> Iterator[None]:
        """Show nothing more once the stream cannot be written."""
        try:
            yield
        except OSError:
            self._bar, self._is_terminal = None, False
            with suppress(OSError):  # a stream without a file
                silence(self._stream)
            self._stream = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - as long as the process


class Console:
    """Shows a run's events as text."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._meter = Meter(stream)
        self._is_sending = False
        self._last_line = ""

    def show(self, event: Event) -> None:
        """Show the event."""
        if isinstance(event, PhaseChanged):
            self._is_sending = event.phase == "sending"
        match event:
            case DownloadProgress(done_mb=done_mb, total_mb=total_mb):
                what = "sending (MB)" if self._is_sending else "downloading the model (MB)"
                left = time_left(event.seconds_left) if self._is_sending else ""
                self._meter.progress(what, round(done_mb), round(total_mb), left)
            case CacheProgress(what=what, done=done, total=total):
                self._meter.progress(f"caching {what}", done, total, time_left(event.seconds_left))
            case SampleProgress(done=done, total=total):
                self._meter.progress("sampling", done, total, "")
            case StepFinished():
                self._meter.progress("training", event.step, event.total_steps, _step_words(event))
            case _:
                text = words(event)
                if text and text != self._last_line:  # a run that only reports ends with its report
                    self._last_line = text
                    self._meter.line(text)

    def close(self) -> None:
        """Restore the terminal."""
        self._meter.close()


def words(event: Event) -> str:
    """Return an event as a line of text; empty for events that are shown as progress."""
    match event:
        case RunStarted():
            return _started_words(event)
        case PhaseChanged(phase=phase, detail=detail) if phase not in ("training", "sampling", "caching"):
            return f"{phase.replace('_', ' ')}: {detail}" if detail else phase.replace("_", " ")
        case SampleReady(path=path):
            return f"sample: {path}"
        case BackupSaved(path=path):
            return f"backup: {path}"
        case ModelSaved(path=path, loading_words=loading):
            return f"saved: {path}" + (f" ({loading})" if loading else "")
        case WarningRaised(message=message, advice=advice):
            return f"warning: {message} {advice}".rstrip()
        case RunFinished(message=message):
            return message
        case RunFailed(message=message, advice=advice, details_path=details):
            return f"failed: {message}\n{advice}{f' Details: {details}' if details else ''}".rstrip()
        case _:
            return _measured_words(event)


def _measured_words(event: Event) -> str:
    if isinstance(event, SummarizedEvent):
        return event.summary
    match event:
        case ValidationFinished():
            return _validation_words(event)
        case RewardMeasured():
            return _reward_words(event)
        case ChoicesWanted():
            return f"{count(event.num_open, 'choice')} to make in {event.path}" if event.num_open else ""
        case _:
            return ""


def _started_words(event: RunStarted) -> str:
    labels = FAMILIES[event.family].part_labels if event.family in FAMILIES else {}
    parts = " and ".join(part_label(part, labels) for part in event.trained_parts)
    images = describe_data(event.num_images, event.num_prompts, event.num_pairs)
    steps, epochs = count(event.total_steps, "step"), count(event.epochs, "epoch")
    return (
        f"Run in {event.run_dir}\n{images}, {steps} over {epochs}; training {parts} "
        f"({event.num_trainable_parameters:,} parameters) on {event.device}."
    )


def time_left(seconds: float | None) -> str:
    """Return a time left as text; empty if it is not known."""
    return f"{timedelta(seconds=round(seconds))} left" if seconds else ""


def _validation_words(event: ValidationFinished) -> str:
    weighted = "" if event.weighted_loss is None else f" (weighted {event.weighted_loss:.5f})"
    best = "" if event.best_loss is None else f", best {event.best_loss:.5f} at step {event.best_step}"
    rows = [f"{name} {value:.5f}" for name, value in event.by_concept.items()] if len(event.by_concept) > 1 else []
    rows += [f"timestep {name} {value:.5f}" for name, value in event.by_timestep.items()]
    measured = f"validation loss {event.loss:.5f}{weighted}{event.metric_words} at step {event.step}{best}"
    return f"{measured}; {', '.join(rows)}".removesuffix("; ")


def _reward_words(event: RewardMeasured) -> str:
    followed = "none" if event.followed is None else f"{event.followed:.5f}"
    held_out = "" if event.held_out is None else f", held-out reward ({event.held_out_by}) {event.held_out:.5f}"
    best = "" if event.best_step is None else f", best at step {event.best_step}"
    diversity = "" if event.diversity is None else f", diversity {event.diversity:.5f}"
    return f"reward {followed}{held_out}{diversity} at step {event.step}{best}"


def _step_words(event: StepFinished) -> str:
    loss = "not finite" if event.loss is None else f"{event.loss:.4f}"
    smoothed = "" if event.smoothed_loss is None else f" smooth {event.smoothed_loss:.4f}"
    reward = f" reward {event.metrics['reward']:.4f}" if "reward" in event.metrics else ""
    rates = list(dict.fromkeys(f"{rate:.3g}" for rate in event.effective_rates.values()))
    effective = f" effective rate {'/'.join(rates)}" if rates else ""
    speed = f"{format_speed(event.images_per_second)} images/s"
    return f"epoch {event.epoch}/{event.epochs} loss {loss}{smoothed}{reward}{effective} {speed}"
