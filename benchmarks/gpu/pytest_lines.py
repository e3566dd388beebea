"""A pytest plugin: writes each result as a line of a file as soon as the test has ended, and skips tests that passed.

pytest's own result files are written at the end, so a run that is stopped would leave none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

FOLDER = "DARKROOM_TEST_RESULTS"
"""The environment variable with the folder of the files."""
PASSED = "passed"
_RESULTS, _LEFT_OUT = "results.jsonl", "left_out.json"


def outcomes_in(folder: Path) -> dict[str, tuple[str, str]]:
    """Return the outcome of each test that has ended, with a reason; one that passed may fail in its teardown."""
    outcomes: dict[str, tuple[str, str]] = {}
    for line in _lines(folder):
        if "name" in line and outcomes.get(line["name"], ("", ""))[0] != "failed":
            outcomes[line["name"]] = line["outcome"], line["reason"]
    return outcomes


def number_in(folder: Path) -> int | None:
    """Return how many tests were to be run since the last `leave_out_passed`; None if they were not collected."""
    return max((line["tests"] for line in _lines(folder) if "tests" in line), default=None)


def leave_out_passed(folder: Path) -> int:
    """Let the next run leave out the tests that have passed, and forget the other results; return their number."""
    passed = [name for name, (outcome, _) in outcomes_in(folder).items() if outcome == PASSED]
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"name": name, "outcome": PASSED, "reason": ""}) + "\n" for name in passed]
    (folder / _RESULTS).write_text("".join(lines), encoding="utf-8")
    (folder / _LEFT_OUT).write_text(json.dumps(passed), encoding="utf-8")  # the results grow while this is read
    return len(passed)


def _lines(folder: Path) -> Iterator[Mapping[str, Any]]:
    if (folder / _RESULTS).is_file():
        for line in (folder / _RESULTS).read_text(encoding="utf-8").splitlines():
            if line.endswith("}"):  # the last one may have been cut off
                yield json.loads(line)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests."""
    names = set(json.loads((_folder() / _LEFT_OUT).read_text(encoding="utf-8")))
    if left_out := [item for item in items if item.nodeid in names]:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.nodeid not in names]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write the number of tests. With several processes the one that starts them collects none."""
    if session.items:
        _write({"tests": len(session.items)})


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: object, ids: Sequence[str]) -> None:
    """Write the number of tests, which all processes have collected."""
    _write({"tests": len(ids)})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write the result of a test, and a failure of its setup or teardown."""
    if report.when == "call" or not report.passed:
        reason = "" if report.passed else _reason(report)
        _write({"name": report.nodeid, "outcome": report.outcome, "reason": reason})


def _reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longrepr).strip().partition("\n")[0][:300]


def _write(line: Mapping[str, Any]) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:  # the process that started the workers gets their results
        with (_folder() / _RESULTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _folder() -> Path:
    return Path(os.environ[FOLDER])
