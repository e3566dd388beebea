"""Stage 2: the tests that need a GPU, and the cases of the pretended GPU on the real one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.gpu.pytest_lines import FOLDER, PASSED, leave_out_passed, number_in, outcomes_in
from benchmarks.gpu.stage import Case, Check, Finding, Request, Unfinished, at_least
from benchmarks.rows import Row
from modules.system.paths import PROGRAM_ROOT

_MARK = "mark.gpu"
_AT_ONCE = "4"  # processes: the models are small, so each process leaves the GPU idle most of the time
_TINY = ("tests/unit/test_ranks.py",)  # no test of a GPU runs on a CPU
_PLUGIN = "benchmarks.gpu.pytest_lines"
_RAN, _NO_TESTS = (0, 1), 5  # exit codes of pytest: all passed, or some failed


def cases(request: Request) -> Sequence[Case]:
    """Return the case of the stage."""
    return (Case("tests", partial(_tests, request)),)


def _tests(request: Request, seconds: float) -> Iterator[Finding]:
    """Run the tests that have not passed yet in a process of their own; each that fails is a check."""
    results = request.kept
    num_passed = leave_out_passed(results)
    selected = _TINY if request.is_tiny else ("-m", "gpu", "-n", _AT_ONCE, *files_with_gpu_tests())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", _PLUGIN, *selected]
    environment = {**os.environ, FOLDER: str(results)}
    try:
        code = subprocess.run(command, cwd=PROGRAM_ROOT, timeout=seconds, check=False, env=environment).returncode
    except subprocess.TimeoutExpired:
        yield from findings_in(results)
        yield Unfinished(_progress_in(results, num_passed))
        return
    yield from findings_in(results)
    if not (code in _RAN or (code == _NO_TESTS and num_passed)):
        yield Check("tests run", f"pytest's exit code {code}", f"0 (not {_NO_TESTS}: no tests)", False)


def files_with_gpu_tests() -> list[str]:
    """Return the files with tests that need a GPU: collecting all files takes a minute in each process."""
    files = sorted((PROGRAM_ROOT / "tests").rglob("test_*.py"))
    return [str(file) for file in files if _MARK in file.read_text(encoding="utf-8")]


def findings_in(folder: Path) -> Iterator[Finding]:
    """Yield the row of the tests that have ended, and a failed check for each test that failed."""
    outcomes = outcomes_in(folder)
    numbers = {o: sum(outcome == o for outcome, _ in outcomes.values()) for o in (PASSED, "failed", "skipped")}
    yield Row("tests", ", ".join(f"{number} {what}" for what, number in numbers.items()), numbers=numbers)
    if outcomes:
        yield at_least("tests that passed", numbers[PASSED], 1)
    for name, (outcome, reason) in outcomes.items():
        if outcome == "failed":
            yield Check(name, reason, "it passes", False)


def _progress_in(folder: Path, num_passed_before: int) -> str:
    total, ended = number_in(folder), len(outcomes_in(folder)) - num_passed_before
    return "no test was collected in time" if total is None else f"{ended} of {total} tests have ended"
