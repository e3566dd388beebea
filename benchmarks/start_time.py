"""The time from the start of a process to the first step of a run, by phase, and from the last step to its end."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from modules.config.codec import export_file
from modules.config.schema import Config
from modules.system.paths import PROGRAM_ROOT, from_root
from trainer.event_lines import from_line
from trainer.events import Event, PhaseChanged, StepFinished

BEFORE_FIRST_EVENT = "command line"


@dataclass(frozen=True, slots=True)
class StartTime:
    """The seconds of a run apart from its steps.

    `phases` are those until the first step is finished, by the names of the phases. `ending` is the time from the last
    step to the end of the process, `bare` the time of a script without this program until its first step is finished.
    `cpu` and `bare_cpu` are the CPU time of the two processes until then, which other programs change less.
    """

    phases: dict[str, float]
    ending: float
    cpu: float = float("nan")
    bare: float = float("nan")
    bare_cpu: float = float("nan")

    @property
    def until_first_step(self) -> float:
        """The seconds until the first step is finished."""
        return sum(self.phases.values())


def start_against_bare(config: Config, folder: Path, *, rounds: int) -> StartTime:
    """Start a run of a config, and a script without this program, in turns; return the medians.

    Each round has caches and a workspace of its own. The first one does not count: it reads the files from the disk.
    """
    times: list[StartTime] = []
    bare: list[tuple[float, float]] = []
    for number in range(rounds + 1):
        times.append(_time_run(config, folder / f"round {number}"))
        bare.append(_time_bare(from_root(config.model.base_model)))
    return _medians(times[1:], bare[1:])


def time_by_phase(events: Iterable[tuple[float, Event | None]]) -> StartTime:
    """Return the times of a run from its events, each with the seconds since the process was started.

    The last one is the end of the process, without an event. Raises ValueError if there was no step.
    """
    phases: dict[str, float] = {}
    phase, since, last_step, now = BEFORE_FIRST_EVENT, 0.0, None, 0.0
    for now, event in events:
        if isinstance(event, StepFinished):
            if last_step is None:
                phases[phase] = phases.get(phase, 0.0) + now - since
            last_step = now
        elif isinstance(event, PhaseChanged) and last_step is None:
            phases[phase] = phases.get(phase, 0.0) + now - since
            phase, since = event.phase, now
    if last_step is None:
        raise ValueError("The run had no step.")
    return StartTime(phases, now - last_step)


def _medians(times: Sequence[StartTime], bare: Sequence[tuple[float, float]]) -> StartTime:
    names = dict.fromkeys(name for one in times for name in one.phases)
    phases = {name: statistics.median(one.phases.get(name, 0.0) for one in times) for name in names}
    ending, cpu = (statistics.median(values) for values in zip(*((one.ending, one.cpu) for one in times), strict=True))
    return StartTime(phases, ending, cpu, *map(statistics.median, zip(*bare, strict=True)))


def _time_run(config: Config, folder: Path) -> StartTime:
    folder.mkdir(parents=True)
    places = {"workspace_dir": str(folder / "workspace"), "cache_dir": str(folder / "cache")}
    output = config.output.model_copy(update={"destination": str(folder / "result.safetensors")})
    general = config.general.model_copy(update=places)
    export_file(config.model_copy(update={"general": general, "output": output}), folder / "config.json")
    cpu: list[float] = []
    arguments = ["-m", "trainer", "train", str(folder / "config.json"), "--json-lines"]
    return replace(time_by_phase(_events(arguments, cpu)), cpu=cpu[0])


def _events(arguments: Sequence[str], cpu: list[float]) -> Iterator[tuple[float, Event | None]]:
    """Yield the events of a run with their seconds; `cpu` gets the CPU time of its process at each step."""
    start = time.perf_counter()
    with _process(arguments) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if (event := from_line(line)) is not None:
                if isinstance(event, StepFinished):
                    cpu.append(_cpu_seconds(process))
                yield time.perf_counter() - start, event
        process.wait()
        yield time.perf_counter() - start, None


def _time_bare(model: Path) -> tuple[float, float]:
    """Return the seconds until the first step of a script without this program, and its CPU time."""
    start = time.perf_counter()
    with _process(["-m", "benchmarks.bare_start", str(model)]) as process:
        assert process.stdout is not None
        process.stdout.readline()
        seconds, cpu = time.perf_counter() - start, _cpu_seconds(process)
        process.communicate()
    return seconds, cpu


def _cpu_seconds(process: subprocess.Popen[str]) -> float:
    times = psutil.Process(process.pid).cpu_times()
    return float(times.user + times.system)


def _process(arguments: Sequence[str]) -> subprocess.Popen[str]:
    # The round that does not count leaves the compiled modules that a user's Python finds, too.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.Popen(
        [sys.executable, "-s", *arguments],
        cwd=PROGRAM_ROOT,
        env=environ,
        stdin=subprocess.PIPE,  # a run stops when it is closed
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
