"""The process of a stage: reads its request from standard input and writes its findings as lines of JSON."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.gpu.stage import STAGES, Case, Check, Request, Unfinished
from benchmarks.rows import Row
from modules.system.allocator import use_growing_segments
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.process_setup import hide_library_warnings
from trainer.launch import import_engine

Say = Callable[[dict[str, Any]], None]
_KINDS = {Row: "row", Check: "check", Unfinished: "rest"}


def main() -> None:
    """Run the cases of a stage. All other output, such as that of libraries, goes to the log."""
    request = Request(**json.loads(sys.stdin.readline()))
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(data: dict[str, Any]) -> None:
        lines.write(json.dumps(data) + "\n")
        lines.flush()

    threading.Thread(target=_end_with_parent, daemon=True).start()
    hide_library_warnings()
    prepare_process(request)
    run_cases(request, say)


def prepare_process(request: Request) -> None:
    """Import the engine, and set what torch reads once in a process, before a case uses the device.

    The allocator's segments grow, as in every process of the program. A deterministic run may follow another run in
    this process, which would otherwise have fixed the other workspaces.
    """
    use_growing_segments()
    import_engine(in_window=False)
    from modules.system.devices import resolve_device
    from trainer.run.machine import take_first_memory
    from trainer.step.precision import CUBLAS_WORKSPACE, REPEATABLE_WORKSPACES

    os.environ.setdefault(CUBLAS_WORKSPACE, REPEATABLE_WORKSPACES[0])
    with contextlib.suppress(DarkroomError):  # a device that is not there is the failure of each case
        take_first_memory(resolve_device(request.device))
    if request.is_tiny:
        import torch

        torch.set_num_threads(1)  # more are slower for small models


def _end_with_parent() -> None:
    """End this process and its group once the command has ended, which closes this process's standard input."""
    sys.stdin.read()
    if sys.platform != "win32":
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


def run_cases(request: Request, say: Say) -> None:
    """Run the cases that are not done yet, as long as there is time, and report their findings with `say`."""
    start = time.monotonic()
    (stage,) = (s for s in STAGES if s.number == request.stage)
    cases: Sequence[Case] = load_factory(stage.cases)(request)
    say({"kind": "cases", "names": [case.name for case in cases]})
    to_run = [case for case in cases if case.name not in request.done]
    left = []
    for index, case in enumerate(to_run):
        seconds = request.seconds - (time.monotonic() - start)
        if seconds <= 0:
            left += [c.name for c in to_run[index:]]
            break
        say({"kind": "begin", "name": case.name})
        if not _run_case(case, seconds / (len(to_run) - index), say):
            left.append(case.name)
        _free_memory()
    say({"kind": "left", "names": left})


def _run_case(case: Case, seconds: float, say: Say) -> bool:
    """Run a case; an error is reported as a failed check. Returns whether the case is finished."""
    start, is_finished = time.monotonic(), True
    try:
        for finding in case.run(seconds):
            is_finished = is_finished and not isinstance(finding, Unfinished)
            say({"kind": _KINDS[type(finding)], **asdict(finding)})
    except Exception as error:  # noqa: BLE001 - a stage continues
        traceback.print_exc()
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:400]
        say({"kind": "check", **asdict(Check("runs without an error", reason, "no error", False))})
    say({"kind": "end", "name": case.name, "seconds": round(time.monotonic() - start, 2), "finished": is_finished})
    return is_finished


def _free_memory() -> None:
    """Free the memory of a case, so that it does not count in the next case's peak."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
