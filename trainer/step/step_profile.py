"""The tables of a profile of training steps: the host's time by function, and what the device waited for."""

from __future__ import annotations

import bisect
import cProfile
import io
import pstats
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.system.paths import PROGRAM_ROOT

_NUM_ROWS = 60
_NUM_OWN_ROWS = 40
_NUM_NAMED = 3
DEVICE_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset")  # categories of torch's Chrome trace
_RUNTIME = ("cuda_runtime", "cuda_driver")
HOST_EVENTS = ("cpu_op", "user_annotation", *_RUNTIME)
_SHORTEST_US = 1.0  # kernels that follow one another have gaps of less
_MICROSECOND = 1e-6
BETWEEN = "Python between operations"


def function_table(profile: cProfile.Profile) -> tuple[str, Mapping[str, float]]:
    """Return the tables of the host's time by function, and the functions with the largest shares in percent.

    The first table has the program's own functions by the time spent in them and in what they call, the second all
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
    for (file, line, name), (_, calls, own, whole, _) in stats.stats.items():
        if file != "~" and Path(file).is_relative_to(PROGRAM_ROOT) and "site-packages" not in file:
            rows.append((whole, own, calls, f"{Path(file).relative_to(PROGRAM_ROOT).as_posix()}:{line} {name}"))
    total = stats.total_tt or 1.0
    lines = [f"{'with calls':>10} {'itself':>8} {'calls':>8}  own function"]
    lines += [
        f"{whole / total:10.1%} {own / total:8.1%} {calls:8}  {where}"
        for whole, own, calls, where in sorted(rows, reverse=True)[:_NUM_OWN_ROWS]
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class DeviceWait:
    """What the host did while the device had nothing to do: how often, and for how long."""

    name: str
    times: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """The seconds from a device's first operation to its last, and those in which it waited, by what for."""

    seconds: float
    waits: Sequence[DeviceWait]

    @property
    def waited_seconds(self) -> float:
        """The seconds in which it had nothing to do."""
        return sum(w.seconds for w in self.waits)

    def __str__(self) -> str:
        """Return the table, the longest wait first."""
        if not self.seconds:
            return "No operation ran on a GPU. A CPU waits for nothing: its time is that of the operations.\n"
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

    Each gap between operations on the device is put down to what the thread that started the next one did for most of
    the gap: the outermost operation, or Python between operations.
    """
    complete = [e for e in events if e.get("ph") == "X"]
    device = sorted((e for e in complete if e.get("cat") in DEVICE_EVENTS), key=lambda e: float(e["ts"]))
    if not device:
        return DeviceTime(0.0, ())
    starters = {_correlation(e): e["tid"] for e in complete if e.get("cat") in _RUNTIME}
    spans = _outermost(e for e in complete if e.get("cat") in HOST_EVENTS and not e["name"].startswith("ProfilerStep"))
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
    found: dict[Any, list[_Span]] = {}
    for event in sorted(events, key=lambda e: (float(e["ts"]), -float(e["dur"]))):
        of_thread, start = found.setdefault(event["tid"], []), float(event["ts"])
        if not of_thread or start >= of_thread[-1].end:
            of_thread.append(_Span(start, start + float(event["dur"]), event["name"]))
    return found


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
