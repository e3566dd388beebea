"""Runs the stages, each in a process of its own, and rewrites the report after each of their cases."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.results import CaseResult, Report, StageResult
from benchmarks.gpu.stage import Check, Request, Stage
from benchmarks.rows import Row
from trainer.child.process import last_lines, spawn_python

WORK = "work"
"""The folder of models and runs, in the folder of the report; it is removed at the end."""
_CHILD = ("-m", "benchmarks.gpu.child")
_OVERTIME, _OVERTIME_SECONDS = 1.5, 60.0  # a case may take longer than planned, but not forever
_ENDING_SECONDS = 15.0  # before the end of a call, for the last case to end by itself
_START = "start of the process"
_DIED = "the process ends by itself"

Spawn = Callable[[Any], "subprocess.Popen[str]"]


@dataclass
class Call:
    """A call of the command: its report, which `write` stores after each case, and the seconds left by its clock."""

    report: Report
    folder: Path
    write: Callable[[Report], None]
    say: Callable[[str], None]
    seconds_left: Callable[[], float]
    spawn: Spawn = field(default=lambda log: spawn_python(_CHILD, log))


@dataclass
class _ProcessEnd:
    """How a process of a stage ended. `running` is the case it was in, `num_ended` the number of cases it completed.

    `is_complete`: it came to the end of the stage. `is_killed`: its time was over.
    """

    running: CaseResult | None = None
    is_complete: bool = False
    is_killed: bool = False
    code: int = 0
    num_ended: int = 0


def run_stages(call: Call, stages: Mapping[Stage, float], *, is_short: bool) -> bool:
    """Run the remaining cases of stages, each stage for its seconds. Returns whether all stages are finished."""
    results = {stage: call.report.of(stage) for stage in stages}
    for stage, seconds in stages.items():
        result = results[stage]
        if result.is_finished:
            continue
        if call.seconds_left() <= _ENDING_SECONDS:
            return False
        call.say(f"stage {stage.number}, {stage.name}: {seconds / 60:.1f} minutes")
        seconds = min(seconds, call.seconds_left() - _ENDING_SECONDS)
        report, work = call.report, call.folder / WORK
        request = Request(stage.number, report.device, report.is_tiny, str(work), seconds, is_short)
        start = time.monotonic()
        _run_stage(call, result, request)
        result.seconds = round(result.seconds + time.monotonic() - start, 1)
        call.write(call.report)
        call.say(f"stage {stage.number}: {_words(result)}")
    return all(result.is_finished for result in results.values())


def _run_stage(call: Call, result: StageResult, request: Request) -> None:
    """Run processes until one comes to the end of the stage, or its time is over: a crash costs a single case."""
    end = time.monotonic() + request.seconds
    while (seconds := end - time.monotonic()) > 0:
        ended = _run_process(call, result, replace(request, seconds=seconds, done=result.done))
        if ended.is_complete:
            return
        reason = last_lines(_log_of(call, result), 1) or "no message"
        if ended.is_killed:
            # The next call repeats a case that the end of this call stopped, unless it had the whole call for itself.
            if ended.running is not None and (call.seconds_left() > 0 or not ended.num_ended):
                _fail(call, result, ended.running, f"stopped after {request.seconds:.0f} s planned for the stage")
            return
        running = ended.running or CaseResult(_START)
        _fail(call, result, running, f"exit code {ended.code}: {reason}")
        if ended.running is None:
            result.is_finished = True  # it would fail again
            return


def _fail(call: Call, result: StageResult, case: CaseResult, reason: str) -> None:
    case.seconds = case.seconds or 0.0
    case.checks.append(Check(_DIED, reason[:400], "no kill, no crash", False))
    result.cases[case.name] = case
    call.write(call.report)


def _run_process(call: Call, result: StageResult, request: Request) -> _ProcessEnd:
    """Run one process of a stage, and add the findings of its cases to the result."""
    ended = _ProcessEnd()
    limit = min(request.seconds * _OVERTIME + _OVERTIME_SECONDS, call.seconds_left())
    log_file = _log_of(call, result)
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("ab") as log:
        process = call.spawn(log)

    def kill() -> None:
        ended.is_killed = True
        kill_group(process)

    timer = threading.Timer(max(0.0, limit), kill)
    timer.start()
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):  # it has died already
            process.stdin.write(json.dumps(asdict(request)) + "\n")
            process.stdin.flush()  # stays open: the process ends when this one closes it
        for line in process.stdout:
            _take(call, result, ended, json.loads(line))
        ended.code = process.wait()
    finally:
        timer.cancel()
        kill_group(process)  # with the processes that it has started
        process.wait()
    return ended


def _take(call: Call, result: StageResult, ended: _ProcessEnd, line: dict[str, Any]) -> None:
    """Add a line of a stage's process to the result."""
    kind = line.pop("kind")
    case = ended.running
    if kind == "cases":
        result.names = line["names"]
    elif kind == "begin":
        ended.running = CaseResult(line["name"])
    elif kind == "left":
        ended.is_complete = True
        result.is_finished = not line["names"]
    elif case is not None and kind == "row":
        case.rows.append(Row(**line))
        call.say(f"  {case.name}: {line['name']}: {line['value']}")
    elif case is not None and kind == "check":
        check = Check(**line)
        case.checks.append(check)
        if not check.passed:
            call.say(f"  {case.name}: FAILED: {check.name}: {check.got} ({check.allowed})")
    elif case is not None and kind == "rest":
        case.left = line["what"]
    elif case is not None and kind == "end":
        case.seconds, ended.running = line["seconds"] if line["finished"] else None, None
        ended.num_ended += 1
        result.cases[case.name] = case
        call.write(call.report)


def kill_group(process: subprocess.Popen[str]) -> None:
    """Kill a process with all processes of its group."""
    if sys.platform == "win32":
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _log_of(call: Call, result: StageResult) -> Path:
    return call.folder / "logs" / f"stage-{result.number:02d}.log"


def _words(result: StageResult) -> str:
    checks = [check for case in result.cases.values() for check in case.checks]
    failed = sum(not check.passed for check in checks)
    return f"{len(checks) - failed} checks passed, {failed} failed, {result.seconds:.0f} s, {result.progress}"
