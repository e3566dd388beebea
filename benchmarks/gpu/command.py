"""The command: its options, its report, its exit code."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.chart import bars_of, write_chart
from benchmarks.gpu.markdown import CHART, FILE, MACHINE, as_markdown
from benchmarks.gpu.results import Report, read_report, write_json
from benchmarks.gpu.runner import WORK, Call, run_stages
from benchmarks.gpu.stage import FULL_MINUTES, STAGES, Stage, is_short, kept_of, stages_of
from modules.system.atomic import remove_folder, write_text
from modules.system.errors import DarkroomError
from modules.system.paths import from_caller
from trainer.cli.program import Verb, run_verb

PASSED, FAILED, UNFINISHED = 0, 1, 3


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--minutes", type=float, default=FULL_MINUTES,
        help="for all stages together (default: 45); with about 10 only the stages 1, 3, 4 and 9",
    )  # fmt: skip
    parser.add_argument("--out", default="report", metavar="FOLDER", help="for the report (default: report)")
    parser.add_argument(
        "--call-minutes", type=float, metavar="MINUTES",
        help="end this call after so many minutes; the same command continues (default: no limit)",
    )  # fmt: skip
    parser.add_argument("--stages", type=int, nargs="+", metavar="STAGE", help="only these stages")
    parser.add_argument(
        "--again", action="store_true", help="repeat the stages, instead of continuing the report in the folder"
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, cpu ... (default: cuda)")
    parser.add_argument("--tiny", action="store_true", help="with small models and sizes, to try the command itself")


def _run(options: argparse.Namespace) -> int:
    stages = _chosen_stages(options)
    folder = from_caller(options.out)
    report = _report(options, folder, stages)
    end = float("inf") if options.call_minutes is None else time.monotonic() + 60 * options.call_minutes
    call = Call(report, folder, lambda r: write_report(folder, r), _say, lambda: end - time.monotonic())
    return run_call(call, stages, is_short=is_short(options.minutes))


def run_call(call: Call, stages: dict[Stage, float], *, is_short: bool) -> int:
    """Run stages, write the report, and return the exit code."""
    call.folder.mkdir(parents=True, exist_ok=True)
    is_complete = run_stages(call, stages, is_short=is_short)
    call.write(call.report)
    failed = len(list(call.report.failed))
    call.say(f"{failed} checks failed. The report: {call.folder / FILE}")
    if not is_complete:
        call.say("It is not finished: the same command continues.")
        return UNFINISHED
    if (call.folder / WORK).is_dir():
        remove_folder(call.folder / WORK)
    return FAILED if failed else PASSED


def write_report(folder: Path, report: Report) -> None:
    """Write the report as JSON, as Markdown and as a chart, which needs a measured step."""
    write_json(folder, report)
    machine, bars = report.row(MACHINE), bars_of(report)
    if bars:
        write_chart(folder / CHART, machine.value if machine is not None else report.device, bars)
    write_text(folder / FILE, as_markdown(report, has_chart=bool(bars)))


def _report(options: argparse.Namespace, folder: Path, stages: dict[Stage, float]) -> Report:
    """Return the report to continue, without the stages that are to be repeated."""
    for stage in stages if options.again else ():
        if (kept := folder / WORK / kept_of(stage.number)).is_dir():
            remove_folder(kept)
    if options.again and options.stages is None:
        return Report(options.device, options.tiny)
    report = read_report(folder, device=options.device, is_tiny=options.tiny)
    for stage in stages if options.again else ():
        report.stages.pop(stage.number, None)
    return report


def _chosen_stages(options: argparse.Namespace) -> dict[Stage, float]:
    """Return the stages to run with their seconds. Raises DarkroomError for options that make no sense."""
    for name in ("minutes", "call_minutes"):
        if (value := getattr(options, name)) is not None and not 0 < value < float("inf"):
            raise DarkroomError(f"--{name.replace('_', '-')} {value:g} is not a time.", advice="Use minutes above 0.")
    known = {stage.number for stage in STAGES}
    if unknown := sorted(set(options.stages or ()) - known):
        raise DarkroomError(
            f"There is no stage {', '.join(map(str, unknown))}.",
            advice=f"Choose from {', '.join(map(str, sorted(known)))}.",
        )
    if options.stages is None:
        return stages_of(options.minutes)
    return {s: 60 * s.minutes * options.minutes / FULL_MINUTES for s in STAGES if s.number in options.stages}


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


VERB = Verb("Check on a GPU what the program promises of GPUs, in stages, and write a report.", _arguments, _run)


def main(arguments: Sequence[str]) -> int:
    """Run the command; the exit code is 0 if all checks passed, 1 if one failed, 3 if stages are not finished."""
    return run_verb("python -m benchmarks gpu", VERB, arguments)
