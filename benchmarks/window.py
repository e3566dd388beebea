"""`python -m benchmarks.window [--json] [--config FILE] [--starts-only]`: how fast the window opens, and its gaps.

Two measurements, each in its own processes, isolated from the user's session:

(a) the start: from the start of the process until the window is drawn; the median of five cold starts, in seconds and
    in CPU seconds of the process, which other programs on the machine change little;
(b) the gaps: a heartbeat of 10 ms on the Tk thread during a real run, by phase of the run. A gap is the time between
    two beats. Goals: p99 under 50 ms and max under 100 ms on free cores, 100 and 250 on busy ones.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from modules.config.codec import export_file, load_file
from modules.config.presets import DEMO, list_presets
from modules.config.schema import Config
from modules.system.paths import PROGRAM_ROOT

NUM_STARTS = 5
_START_CODE = (
    "import time; from ui.__main__ import main; main([], on_visible=lambda: print(time.process_time(), flush=True))"
)
_MAX_SECONDS = 1200


@dataclass(frozen=True, slots=True)
class Start:
    """A start until the window is drawn: its time, and the CPU time of its process."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class PhaseGaps:
    """The gaps of one phase, in milliseconds."""

    phase: str
    seconds: float
    num_beats: int
    p50_ms: float
    p99_ms: float
    max_ms: float


def measure_starts(home: Path) -> list[Start]:
    """Return the times from process start to a visible window, one for each cold start."""
    starts = []
    for number in range(NUM_STARTS):
        begun = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", _START_CODE],
            cwd=PROGRAM_ROOT,
            env=_environment(home / str(number)),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - begun
        process.kill()
        process.wait()
        if not line.strip():
            raise RuntimeError("The window did not open; is there a display?")
        starts.append(Start(seconds, float(line)))
    return starts


def measure_gaps(home: Path, config: Config) -> list[PhaseGaps]:
    """Return the gaps of a whole run and of a stop, measured in a separate process."""
    home.mkdir(parents=True, exist_ok=True)
    config_file, result_file = home / "config.json", home / "gaps.json"
    export_file(_in_folder(config, home), config_file)
    subprocess.run(
        [sys.executable, "-m", "benchmarks.window_gaps", str(config_file), str(result_file)],
        cwd=PROGRAM_ROOT,
        env=_environment(home),
        timeout=_MAX_SECONDS,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return [PhaseGaps(**entry) for entry in json.loads(result_file.read_text(encoding="utf-8"))]


def summarise(gaps_ms: Mapping[str, Sequence[float]]) -> list[PhaseGaps]:
    """Return the percentiles of each phase's gaps, in the order of the phases."""
    return [_percentiles_of(phase, sorted(gaps)) for phase, gaps in gaps_ms.items() if gaps]


def table(starts: Sequence[Start], gaps: Sequence[PhaseGaps]) -> str:
    """Return the measurements as text."""
    seconds = [start.seconds for start in starts]
    cpu_seconds = statistics.median(start.cpu_seconds for start in starts)
    lines = [
        f"window start: median {statistics.median(seconds):.2f} s of {len(starts)} "
        f"(from {min(seconds):.2f} to {max(seconds):.2f}), {cpu_seconds:.2f} s of CPU time"
    ]
    if gaps:
        lines += ["", f"{'phase':<12}{'seconds':>9}{'beats':>8}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}"]
        lines += [
            f"{g.phase:<12}{g.seconds:>9.1f}{g.num_beats:>8}{g.p50_ms:>9.1f}{g.p99_ms:>9.1f}{g.max_ms:>9.1f}"
            for g in gaps
        ]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Measure, and write a table (with --json: one object) to the standard output."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.window", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="write one JSON object instead of a table")
    parser.add_argument("--config", type=Path, help="the config to run (default: the demo preset)")
    parser.add_argument("--starts-only", action="store_true", help="measure only the start")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="darkroom-benchmark-") as folder:
        starts = measure_starts(Path(folder) / "starts")
        config = None if options.starts_only else _config_of(options.config)
        gaps = measure_gaps(Path(folder) / "gaps", config) if config else []
    result = {
        "start_seconds": [start.seconds for start in starts],
        "start_median_seconds": statistics.median(start.seconds for start in starts),
        "start_median_cpu_seconds": statistics.median(start.cpu_seconds for start in starts),
        "gaps": [asdict(g) for g in gaps],
    }
    sys.stdout.write((json.dumps(result, indent=1) if options.json else table(starts, gaps)) + "\n")
    return 0


def _percentiles_of(phase: str, gaps: list[float]) -> PhaseGaps:
    def at(share: float) -> float:
        return round(gaps[min(len(gaps) - 1, int(share * len(gaps)))], 1)

    return PhaseGaps(phase, round(sum(gaps) / 1000, 1), len(gaps), at(0.5), at(0.99), round(gaps[-1], 1))


def _config_of(file: Path | None) -> Config | None:
    if file is not None:
        return load_file(file).config
    demo = next((p for p in list_presets() if p.name == DEMO), None)
    return demo.load().config if demo else None


def _in_folder(config: Config, home: Path) -> Config:
    """Return the config with all its output in a folder of the benchmark and an empty cache."""
    folders = {"workspace_dir": str(home / "workspace"), "cache_dir": str(home / "cache")}
    return config.model_copy(
        update={
            "general": config.general.model_copy(update=folders),
            "output": config.output.model_copy(update={"destination": str(home / "lora.safetensors")}),
        }
    )


def _environment(home: Path) -> dict[str, str]:
    """Return an environment that isolates the user's session, presets and logs."""
    folders = ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "APPDATA", "LOCALAPPDATA")
    return {**os.environ, **{name: str(home / name.lower()) for name in folders}}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
