"""Profiles a few steps of a run on request: what the devices and the host do, and which functions take the time.

First torch's profiler: two steps of warmup, then ten, written as a Chrome trace (trace.json, for chrome://tracing or
Perfetto), a table of operators, and one of the waits of a GPU. Then Python's profiler over ten more steps: the
host's time by function. It changes no number of the run.
"""

from __future__ import annotations

import bisect
import cProfile
import io
import json
import logging
import pstats
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from modules.system.atomic import atomic_file, write_text
from modules.system.paths import PROGRAM_ROOT
from trainer.commands import CommandDesk, ProfileNow
from trainer.events import Event, WarningRaised
from trainer.machine_events import ProfileWritten
from trainer.step.counters import Counters

NUM_STEPS = 10
WARMUP_STEPS = 2
_NUM_ROWS = 60  # of each table
_NUM_OWN_ROWS = 40
_NUM_NAMED = 3
_DEVICE_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset")  # categories of torch's Chrome trace
_RUNTIME_EVENTS = ("cuda_runtime", "cuda_driver")
_HOST_EVENTS = ("cpu_op", "user_annotation", *_RUNTIME_EVENTS)
_SHORTEST_US = 1.0  # kernels that follow one another have gaps of less
_MICROSECOND = 1e-6
BETWEEN = "Python between operations"

_log = logging.getLogger(__name__)


class Profiling:
    """Takes `ProfileNow` after a step and profiles the steps that follow. Files go to `profile/step-N` of the run."""

    def __init__(self, run_dir: Path, desk: CommandDesk, emit: Callable[[Event], None]) -> None:
        self._run_dir, self._desk, self._emit = run_dir, desk, emit
        self._operators: Any = None
        self._functions: cProfile.Profile | None = None
        self._num_steps = 0
        self._folder = run_dir
        self.num_steps = NUM_STEPS

    def between_steps(self, now: Counters) -> None:
        """Start, continue or end a profile."""
        if self._functions is not None:
            self._num_steps += 1
            if self._num_steps == self.num_steps:
                self._end(now.step)
        elif self._operators is not None:
            self._num_steps += 1
            self._operators.step()
            if self._num_steps == WARMUP_STEPS + self.num_steps:
                self._operators_to_functions()
        elif self._desk.take(ProfileNow):
            self._start(now.step)

    def close(self) -> None:
        """End a profile that the end of the run interrupts, and discard it."""
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
        self._folder = self._run_dir / "profile" / f"step-{step + 1:08d}"
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


def function_table(profile: cProfile.Profile) -> tuple[str, Mapping[str, float]]:
    """Return the tables of the host's time by function, and the functions with the largest shares in percent.

    The first table has the program's own functions by the time spent in them and in their calls, the second all
    functions by the time spent in themselves.
    """
    stream = io.StringIO()
    stats: Any = pstats.Stats(profile, stream=stream)
    stats.sort_stats("tottime").print_stats(_NUM_ROWS)
    whole = stats.total_tt or 1.0
    longest = sorted(stats.stats.items(), key=lambda row: row[1][2], reverse=True)[:_NUM_NAMED]
    shares: dict[str, float] = {}
    for (file, line, name), row in longest:
        where = name if file == "~" else f"{Path(file).name}:{line} {name}"
        shares[where] = shares.get(where, 0.0) + 100 * row[2] / whole
    return f"{_own_functions(stats)}\n{stream.getvalue()}", shares


def _own_functions(stats: Any) -> str:
    """Return the table of the program's own functions, the one with the most time first."""
    rows = []
    for (file, line, name), (_, calls, itself, whole, _) in stats.stats.items():
        if file != "~" and Path(file).is_relative_to(PROGRAM_ROOT) and "site-packages" not in file:
            rows.append((whole, itself, calls, f"{Path(file).relative_to(PROGRAM_ROOT).as_posix()}:{line} {name}"))
    total = stats.total_tt or 1.0
    lines = [f"{'with calls':>10} {'itself':>8} {'calls':>8}  own function"]
    lines += [
        f"{whole / total:10.1%} {itself / total:8.1%} {calls:8}  {where}"
        for whole, itself, calls, where in sorted(rows, reverse=True)[:_NUM_OWN_ROWS]
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class DeviceWait:
    """Work of the host while the device had nothing to do: how often, and for how long."""

    name: str
    times: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """The seconds from a device's first operation to its last, and the seconds in which it waited, by their cause."""

    seconds: float
    waits: Sequence[DeviceWait]

    @property
    def waited_seconds(self) -> float:
        """The seconds in which it had nothing to do."""
        return sum(w.seconds for w in self.waits)

    def __str__(self) -> str:
        """Return the table, the longest wait first."""
        if not self.seconds:
            return "No operation ran on a GPU. A CPU waits for nothing: all of its time is spent in the operations.\n"
        lines = [f"The device waited for {self.waited_seconds / self.seconds:.1%} of {self.seconds:.3f} s:"]
        lines += [f"{w.seconds / self.seconds:8.2%} {w.times:7}  {w.name}" for w in self.waits[:_NUM_OWN_ROWS]]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class _Span:
    """An operation of the host, in microseconds."""

    start: float
    end: float
    name: str


def device_time(events: Iterable[Mapping[str, Any]]) -> DeviceTime:
    """Return a device's time from the events of a Chrome trace of torch's profiler.

    Each gap between operations on the device is attributed to what the thread that started the next one did for most of
    the gap: the outermost operation, or Python between operations.
    """
    complete = [e for e in events if e.get("ph") == "X"]
    device = sorted((e for e in complete if e.get("cat") in _DEVICE_EVENTS), key=lambda e: float(e["ts"]))
    if not device:
        return DeviceTime(0.0, ())
    starters = {_correlation(e): e["tid"] for e in complete if e.get("cat") in _RUNTIME_EVENTS}
    spans = _outermost(e for e in complete if e.get("cat") in _HOST_EVENTS and not e["name"].startswith("ProfilerStep"))
    first, busy_until = float(device[0]["ts"]), float(device[0]["ts"])
    waits: dict[str, list[float]] = {}
    for event in device:
        start = float(event["ts"])
        if start - busy_until >= _SHORTEST_US:
            name = _main_work(spans.get(starters.get(_correlation(event)), []), busy_until, start)
            waits.setdefault(name, []).append(start - busy_until)
        busy_until = max(busy_until, start + float(event["dur"]))
    rows = [DeviceWait(name, len(gaps), sum(gaps) * _MICROSECOND) for name, gaps in waits.items()]
    return DeviceTime((busy_until - first) * _MICROSECOND, sorted(rows, key=lambda w: -w.seconds))


def _correlation(event: Mapping[str, Any]) -> Any:
    return event.get("args", {}).get("correlation")


def _outermost(events: Iterable[Mapping[str, Any]]) -> dict[Any, list[_Span]]:
    """Return the operations of each thread that are not inside others, in order."""
    spans: dict[Any, list[_Span]] = {}
    for event in sorted(events, key=lambda e: (float(e["ts"]), -float(e["dur"]))):
        of_thread, start = spans.setdefault(event["tid"], []), float(event["ts"])
        if not of_thread or start >= of_thread[-1].end:
            of_thread.append(_Span(start, start + float(event["dur"]), event["name"]))
    return spans


def _main_work(spans: Sequence[_Span], start: float, end: float) -> str:
    """Return the name of what took most of an interval among the operations of a thread and the time between them."""
    shares: dict[str, float] = {}
    index = max(0, bisect.bisect_right(spans, start, key=lambda s: s.start) - 1)
    for span in spans[index:]:
        if span.start >= end:
            break
        shares[span.name] = shares.get(span.name, 0.0) + max(0.0, min(end, span.end) - max(start, span.start))
    shares[BETWEEN] = end - start - sum(shares.values())
    return max(shares, key=lambda name: shares[name])
