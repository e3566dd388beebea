"""Profiles a few steps of a run on request: what the devices and the host do, and which functions take the time.

First torch's profiler: two steps of warmup, then ten, written as a Chrome trace (trace.json, for chrome://tracing or
Perfetto), an image of two of them (timeline.png), a table of operators, and one of what a GPU waited for. Then
Python's profiler over ten more steps: the host's time by function. It changes no number of the run.
"""

from __future__ import annotations

import cProfile
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from modules.system.atomic import atomic_file, write_text
from trainer.commands import CommandDesk, ProfileNow
from trainer.events import Event, ProfileWritten, WarningRaised
from trainer.step.callback import DryRunCheck, DryRunState, StepView
from trainer.step.step_profile import device_time, function_table
from trainer.step.step_timeline import timeline_of, write_timeline

NUM_STEPS = 10
WARMUP_STEPS = 2
_NUM_ROWS = 60
_log = logging.getLogger(__name__)


class Profiling:
    """Takes `ProfileNow` after a step and profiles the steps that follow. Files go to `profile/step-N` of the run."""

    def __init__(self, run_dir: Path, desk: CommandDesk, emit: Callable[[Event], None]) -> None:
        self._run_dir, self._desk, self._emit = run_dir, desk, emit
        self._operators: Any = None
        self._functions: cProfile.Profile | None = None
        self._num_steps = 0
        self._folder = run_dir
        self._first_step = 0
        self.num_steps = NUM_STEPS

    def after_step(self, view: StepView) -> None:
        """Start, continue or end a profile."""
        if self._functions is not None:
            self._num_steps += 1
            if self._num_steps == self.num_steps:
                self._end(view.now.step)
        elif self._operators is not None:
            self._num_steps += 1
            self._operators.step()
            if self._num_steps == WARMUP_STEPS + self.num_steps:
                self._operators_to_functions()
        elif self._desk.take(ProfileNow):
            self._start(view.now.step)

    def dry_run_checks(self, state: DryRunState) -> Sequence[DryRunCheck]:
        """Return no checks: profiling is not part of the run."""
        return ()

    def close(self) -> None:
        """End a profile that the end of the run interrupts; what was measured so far is discarded."""
        if self._functions is not None:
            self._functions.disable()
        if self._operators is not None:
            self._operators.on_trace_ready = None
            self._operators.stop()
        if self._functions is not None or self._operators is not None:
            self._emit(WarningRaised("The run ended before the profile was complete; it was discarded."))
        self._functions = self._operators = None

    def _start(self, step: int) -> None:
        profiler = torch.profiler
        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        self._first_step = step + 1
        self._folder = self._run_dir / "profile" / f"step-{self._first_step:08d}"
        self._num_steps = 0
        self._operators = profiler.profile(
            activities=activities,
            schedule=profiler.schedule(wait=0, warmup=WARMUP_STEPS, active=self.num_steps, repeat=1),
            on_trace_ready=self._write_operators,
        )
        self._operators.start()

    def _operators_to_functions(self) -> None:
        self._operators.stop()
        self._operators = None
        self._num_steps = 0
        self._functions = cProfile.Profile()
        try:
            self._functions.enable()
        except ValueError as error:  # another profiler or a debugger is active
            self._functions = None
            self._emit(WarningRaised(f"The host's time by function could not be measured: {error}."))

    def _write_operators(self, profiler: Any) -> None:
        """Write the trace and the table of operators; a full disk does not end the run."""
        rows = profiler.key_averages()
        order = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        try:
            with atomic_file(self._folder / "trace.json") as temporary:
                profiler.export_chrome_trace(str(temporary))
            trace = json.loads((self._folder / "trace.json").read_text(encoding="utf-8"))
            write_text(self._folder / "waits.txt", str(device_time(trace["traceEvents"])))
            if (timeline := timeline_of(trace["traceEvents"])) is not None:
                title = f"Profile from step {self._first_step:,}"
                write_timeline(self._folder / "timeline.png", timeline, title=title)
            table = rows.table(sort_by=order, row_limit=_NUM_ROWS, max_name_column_width=70)
            write_text(self._folder / "operators.txt", f"{table}\n")
        except OSError as error:
            self._warn(error)

    def _end(self, step: int) -> None:
        functions, self._functions = self._functions, None
        assert functions is not None
        functions.disable()
        text, slowest = function_table(functions)
        try:
            write_text(self._folder / "functions.txt", text)
        except OSError as error:
            self._warn(error)
            return
        self._emit(ProfileWritten(step, self.num_steps, str(self._folder), slowest))

    def _warn(self, error: OSError) -> None:
        _log.warning("The profile could not be written", exc_info=error)
        message = f"The profile could not be written to {self._folder}: {error.strerror or error}."
        self._emit(WarningRaised(message, "Free some space, then profile again."))
