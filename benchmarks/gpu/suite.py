"""Stage 2: the tests that need a GPU, and the cases of the pretended GPU on the real one."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.gpu.stage import Case, Check, Found, Request, at_least
from benchmarks.rows import Row
from modules.system.paths import PROGRAM_ROOT

_MARK = "mark.gpu"
_AT_ONCE = "4"  # small models: each of these processes leaves the GPU idle most of the time
_TINY = ("tests/unit/test_ranks.py",)  # no test of a GPU runs on a CPU
_NO_TESTS = 5  # pytest's exit code


def cases(request: Request) -> Sequence[Case]:
    """Return the case of the stage."""
    return (Case("tests", partial(_tests, request)),)


def _tests(request: Request, seconds: float) -> Iterator[Found]:
    """Run the tests in a process of their own; each that fails is a check."""
    results = request.folder / "tests.xml"
    results.parent.mkdir(parents=True, exist_ok=True)
    results.unlink(missing_ok=True)
    selected = _TINY if request.is_tiny else ("-m", "gpu", "-n", _AT_ONCE, *files_with_gpu_tests())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={results}", *selected]
    try:
        code = subprocess.run(command, cwd=PROGRAM_ROOT, timeout=seconds, check=False).returncode
    except subprocess.TimeoutExpired:
        yield Check("tests end in time", f"stopped after {seconds:.0f} s", "they end", False)
        return
    if not results.is_file():
        yield Check("tests run", f"pytest's exit code {code}", f"0 (not {_NO_TESTS}: no tests)", False)
        return
    yield from results_of(results)


def files_with_gpu_tests() -> list[str]:
    """Return the files of tests that need a GPU: to collect the tests of all files takes a minute in each process."""
    files = sorted((PROGRAM_ROOT / "tests").rglob("test_*.py"))
    return [str(file) for file in files if _MARK in file.read_text(encoding="utf-8")]


def results_of(file: Path) -> Iterator[Found]:
    """Return the row of the tests in a JUnit file of pytest, and a check of each that failed."""
    tests = list(ElementTree.parse(file).getroot().iter("testcase"))
    skipped = sum(test.find("skipped") is not None for test in tests)
    failed = {test: found for test in tests for kind in ("failure", "error") if (found := test.find(kind)) is not None}
    passed = len(tests) - skipped - len(failed)
    numbers = {"passed": passed, "failed": len(failed), "skipped": skipped}
    yield Row("tests", ", ".join(f"{number} {what}" for what, number in numbers.items()), numbers=numbers)
    yield at_least("tests that passed", passed, 1)
    for test, found in failed.items():
        reason = (found.get("message") or "").strip().partition("\n")[0][:300]
        yield Check(f"{test.get('classname')}.{test.get('name')}", reason, "it passes", False)
