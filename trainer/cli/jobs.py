"""Jobs as verbs: progress on the terminal or JSON lines; Ctrl-C or a Stop line stops a job cleanly."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from modules.settings.field import Section
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.file_errors import UnconfirmedError, describe_file_error, is_disk_full
from modules.system.redaction import redact
from trainer import commands
from trainer.cli.console import Meter, reading_commands, time_left
from trainer.cli.options import add_options, settings_of
from trainer.cli.program import STOPPED, WRONG, Verb, exit_code_of
from trainer.cli.signals import at_signal
from trainer.event_lines import to_line
from trainer.job import Job
from trainer.job_events import (
    ImageAnnotated,
    JobEvent,
    JobFailed,
    JobFinished,
    JobLines,
    JobNotes,
    JobProgress,
    JobStopped,
)
from trainer.jobs.registry import JOBS
from trainer.jobs.spec import JobSpec, request_in, validate_settings

_TEXT_CHARS = 1_000_000  # written at once: the metadata of a model may be as large as a file


def verb_of(spec: JobSpec) -> Verb:
    """Return the verb of a job."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.description = spec.description or spec.help
        add_options(parser, spec.settings)
        if spec.shows == "files":
            parser.add_argument(
                "--json-lines",
                action="store_true",
                help="for programs: print events as JSON lines to standard output, read a Stop from standard input, "
                "and stop when it ends",
            )
        if spec.server:
            parser.add_argument("--serve", action="store_true", help="for programs: read requests from standard input")

    def run(options: argparse.Namespace) -> int:
        if spec.server and options.serve:
            load_factory(spec.server)()
            return 0
        settings = validate_settings(spec.settings, settings_of(options, spec.settings))
        if spec.shows == "text":
            with job_on_terminal() as job:
                end = spec.run(settings, job)
            return _print_text(end) if isinstance(end, JobFinished) else 0
        return run_job(spec, settings, is_json=options.json_lines)

    return Verb(spec.help.removesuffix("."), add_arguments, run)


@contextmanager
def job_on_terminal() -> Iterator[Job]:
    """Yield a job whose progress is shown on standard error."""
    meter = Meter()
    try:
        yield Job(lambda event: _show_on_terminal(event, meter))
    finally:
        meter.close()


def run_request(_options: argparse.Namespace) -> int:
    """Do the job in the first line of standard input, with events as JSON lines; a later line may stop it."""
    try:
        request = request_in(sys.stdin.readline(), JOBS)
        if request is None:
            raise DarkroomError("The first line is not a request.", advice='Write {"job": NAME, "settings": {...}}.')
    except DarkroomError as error:
        sys.stdout.write(to_line(JobFailed(redact(error.message), redact(error.advice))) + "\n")
        return WRONG
    return run_job(*request, is_json=True)


REQUEST = Verb("Do the job in the first line of standard input.", lambda _parser: None, run_request)
"""The verb of the window's requests, which is not listed."""


def run_job(spec: JobSpec, settings: Section, *, is_json: bool) -> int:
    """Run a job and return its exit code. With JSON lines, a line of standard input or its end stops it.

    Raises DarkroomError if it fails, unless it prints JSON lines.
    """
    desk = commands.CommandDesk()
    meter = Meter()

    def show(event: JobEvent) -> None:
        if is_json:
            sys.stdout.write(to_line(event) + "\n")
            sys.stdout.flush()
        else:
            _show_on_terminal(event, meter)

    def stop() -> None:
        desk.put(commands.Stop())

    try:
        with reading_commands(desk, stop) if is_json else nullcontext(), at_signal(stop, again=_interrupt):
            end = spec.run(settings, Job(show, desk))
        return _finish(end, show, meter, is_json=is_json)
    except (commands.StopRequested, KeyboardInterrupt):
        return _finish(JobStopped(spec.stopped), show, meter, is_json=is_json)
    except (DarkroomError, OSError) as error:
        failure = error if isinstance(error, DarkroomError) else _unwritable_file(error)
        meter.close()
        if not is_json:
            raise failure from error
        remedy = "space" if is_disk_full(error) else failure.remedy
        show(JobFailed(redact(failure.message), redact(failure.advice), remedy=remedy))
        return exit_code_of(error)


def _show_on_terminal(event: JobEvent, meter: Meter) -> None:
    match event:
        case JobProgress():
            meter.progress(event.what, event.done, event.total, time_left(event.seconds_left))
        case JobNotes():
            for note in event.notes:
                meter.line(note)
        case JobLines():
            for line in event.lines:
                meter.line(line)
        case ImageAnnotated() if event.problem:
            meter.line(f"{event.path}: {event.problem}")


def _finish(end: JobFinished | JobStopped, show: Callable[[JobEvent], None], meter: Meter, *, is_json: bool) -> int:
    """Print how a job ended and return its exit code: its text, or the files that it wrote, on standard output."""
    meter.close()
    if is_json:
        show(end)
    elif isinstance(end, JobFinished) and end.text:
        _print_text(end)
    elif isinstance(end, JobStopped) or not end.paths:
        meter.line(end.message)
    else:
        for line in (end.message, *end.notes) if end.notes else ():
            meter.line(line)
        sys.stdout.write("".join(f"{path}\n" for path in end.paths))
    return STOPPED if isinstance(end, JobStopped) else end.code


def _print_text(end: JobFinished) -> int:
    for start in range(0, len(end.text), _TEXT_CHARS):
        sys.stdout.write(end.text[start : start + _TEXT_CHARS])
    return end.code


def _unwritable_file(error: OSError) -> DarkroomError:
    message, advice = describe_file_error(error)
    if isinstance(error, UnconfirmedError):
        return DarkroomError(message, advice=advice)
    return DarkroomError(f"There is no result. {message} Existing files were not changed.", advice=advice)


def _interrupt() -> None:
    raise KeyboardInterrupt
