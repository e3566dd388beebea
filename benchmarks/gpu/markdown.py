"""The report for people: the device, the failures, and a table of each stage, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from benchmarks.gpu.results import CaseResult, Report, StageResult

FILE, CHART = "report.md", "report.png"
MACHINE = "machine"
"""The row of stage 1 that names the device and its driver."""


def as_markdown(report: Report, *, has_chart: bool) -> str:
    """Return the report as text; failures come first."""
    return "\n".join(_lines(report, has_chart=has_chart)) + "\n"


def _lines(report: Report, *, has_chart: bool) -> Iterator[str]:
    machine = report.row(MACHINE)
    yield f"# The program on {machine.value if machine is not None else report.device}"
    yield ""
    if report.is_tiny:
        yield "With small sizes: this shows that the command works, not how fast the device is."
        yield ""
    yield from _failures(report)
    if has_chart:
        yield f"![Seconds a step and share of the device's speed]({CHART})"
        yield ""
    for stage in report.in_order:
        yield from _stage(stage)


def _failures(report: Report) -> Iterator[str]:
    failed = list(report.failed)
    unfinished = [stage for stage in report.in_order if not stage.is_finished]
    checks = sum(len(case.checks) for stage in report.in_order for case in stage.cases.values())
    yield f"**{checks - len(failed)} checks passed, {len(failed)} failed.**"
    yield ""
    if unfinished:
        yield "The same command continues with what is left:"
        yield ""
        yield from (f"- stage {stage.number} ({stage.name}): {stage.progress}" for stage in unfinished)
        yield ""
    if failed:
        rows = [(f"{s.number} {s.name}", case.name, c.name, c.got, c.allowed) for s, case, c in failed]
        yield from _table(("stage", "case", "failed", "got", "allowed"), rows)


def _stage(stage: StageResult) -> Iterator[str]:
    yield f"## {stage.number}. {stage.name[0].upper()}{stage.name[1:]}"
    yield ""
    yield f"{stage.seconds:.0f} s, {stage.progress}"
    yield ""
    cases = list(stage.cases.values())
    measured = [(case.name, row.name, row.value) for case in cases for row in case.rows]
    if measured:
        yield from _table(("case", "measured", "value"), measured)
    checked = list(_checked(cases))
    if checked:
        yield from _table(("case", "check", "got", "allowed", ""), checked)


def _checked(cases: Iterable[CaseResult]) -> Iterator[tuple[str, ...]]:
    for case in cases:
        for check in case.checks:
            yield case.name, check.name, check.got, check.allowed, "passed" if check.passed else "**FAILED**"


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(heading) + " |"
    yield "|" + "---|" * len(heading)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |"
    yield ""
