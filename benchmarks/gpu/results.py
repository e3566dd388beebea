"""The findings of the stages so far, kept as JSON, so that another call of the command continues."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.stage import Check, Stage
from benchmarks.rows import Row
from modules.system.atomic import write_text
from modules.system.errors import DarkroomError

FILE = "report.json"


@dataclass
class CaseResult:
    """The findings of a case. `seconds` is None until all of it has run; `left` describes the rest."""

    name: str
    seconds: float | None = None
    rows: list[Row] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    left: str = ""

    @property
    def failed(self) -> list[Check]:
        """The checks that did not pass."""
        return [check for check in self.checks if not check.passed]


@dataclass
class StageResult:
    """The cases of a stage that have run, by name, and its seconds so far; `is_finished` once all have run.

    `names` are the names of all its cases; empty until the stage has begun.
    """

    number: int
    name: str
    seconds: float = 0.0
    is_finished: bool = False
    cases: dict[str, CaseResult] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

    @property
    def done(self) -> tuple[str, ...]:
        """The names of the cases that have run completely."""
        return tuple(name for name, case in self.cases.items() if case.seconds is not None)

    @property
    def progress(self) -> str:
        """The number of cases still to run, and their time at the pace so far, as a phrase."""
        if self.is_finished:
            return "finished"
        if not self.names:
            return "not begun"
        left = [name for name in self.names if name not in self.done]
        parts = [case.left for case in self.cases.values() if case.left]
        words = f"{len(left)} of {len(self.names)} cases left" + "".join(f" ({part})" for part in parts)
        if not self.done:
            return words
        minutes = sum(self.cases[name].seconds or 0.0 for name in self.done) / len(self.done) * len(left) / 60
        return f"{words}, about {minutes:.1f} minutes at the pace so far"

    @property
    def failed(self) -> list[tuple[CaseResult, Check]]:
        """The checks that did not pass, with their cases."""
        return [(case, check) for case in self.cases.values() for check in case.failed]


@dataclass
class Report:
    """The results of the stages by number, on a device; `is_tiny`: with small models and sizes."""

    device: str
    is_tiny: bool
    stages: dict[int, StageResult] = field(default_factory=dict)

    def of(self, stage: Stage) -> StageResult:
        """Return the result of a stage, empty at first."""
        return self.stages.setdefault(stage.number, StageResult(stage.number, stage.name))

    @property
    def in_order(self) -> list[StageResult]:
        """The results by the stages' numbers."""
        return [self.stages[number] for number in sorted(self.stages)]

    @property
    def failed(self) -> Iterator[tuple[StageResult, CaseResult, Check]]:
        """All checks that did not pass."""
        for stage in self.in_order:
            yield from ((stage, case, check) for case, check in stage.failed)

    def row(self, name: str) -> Row | None:
        """Return the first row with a name; None without one."""
        rows = (row for s in self.in_order for case in s.cases.values() for row in case.rows)
        return next((row for row in rows if row.name == name), None)


def write_json(folder: Path, report: Report) -> None:
    """Write a report's numbers."""
    write_text(folder / FILE, json.dumps(asdict(report), indent=1) + "\n")


def read_report(folder: Path, *, device: str, is_tiny: bool) -> Report:
    """Return the report that an earlier call has written, or an empty one.

    Raises DarkroomError for the report of another device or size, and for a file that is not a report.
    """
    file = folder / FILE
    if not file.exists():
        return Report(device, is_tiny)
    try:
        report = _decode(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DarkroomError(f"{file} is not a report of this command.", advice="Choose another folder.") from error
    if (report.device, report.is_tiny) != (device, is_tiny):
        raise DarkroomError(
            f"{file} is a report of {_kind(report.device, report.is_tiny)}, not of {_kind(device, is_tiny)}.",
            advice="Choose another folder, or begin anew with --again.",
        )
    return report


def _decode(data: dict[str, Any]) -> Report:
    stages = [StageResult(**{**stage, "cases": _cases(stage["cases"])}) for stage in data["stages"].values()]
    return Report(str(data["device"]), bool(data["is_tiny"]), {stage.number: stage for stage in stages})


def _cases(data: dict[str, Any]) -> dict[str, CaseResult]:
    return {
        name: CaseResult(
            name,
            case["seconds"],
            [Row(**row) for row in case["rows"]],
            [Check(**check) for check in case["checks"]],
            case.get("left", ""),
        )
        for name, case in data.items()
    }


def _kind(device: str, is_tiny: bool) -> str:
    return f"the device {device}{' with small sizes' if is_tiny else ''}"
