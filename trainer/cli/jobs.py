"""Running a job as a verb: progress on the terminal or JSON lines, Ctrl-C or a Stop line stops it cleanly."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable

from modules.system.errors import DarkroomError
from modules.system.file_errors import UnconfirmedError, describe_file_error
from modules.system.redaction import redact
from trainer import commands
from trainer.cli.console import Meter, time_left
from trainer.cli.signals import on_signal
from trainer.event_lines import to_line
from trainer.job_events import ImageAnnotated, JobEvent, JobFailed, JobFinished, JobNotes, JobProgress, JobStopped
from trainer.tools.job import Job

DTYPES = ("float16", "bfloat16", "float32")
_NOTHING_WRITTEN = "Stopped. Nothing was written."


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --json-lines."""
    parser.add_argument(
        "--json-lines",
        action="store_true",
        help="for programs: print events as JSON lines to standard output, read a Stop from standard input",
    )


def add_output_arguments(parser: argparse.ArgumentParser, *, default_dtype: str = "that of the inputs") -> None:
    """Add --dtype, --overwrite and --json-lines."""
    parser.add_argument("--dtype", choices=DTYPES, help=f"the output dtype (default: {default_dtype})")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing OUT")
    add_job_arguments(parser)


def run_job(
    options: argparse.Namespace, work: Callable[[Job], JobFinished | JobStopped], *, stopped: str = _NOTHING_WRITTEN
) -> int:
    """Run a job and return its exit code. `stopped` is the message if a stop ends it before it is done.

    Raises DarkroomError where it fails, unless it prints JSON lines.
    """
    desk = commands.CommandDesk()
    meter = Meter()

    def show(event: JobEvent) -> None:
        if options.json_lines:
            sys.stdout.write(to_line(event) + "\n")
            sys.stdout.flush()
        else:
            _show_on_terminal(event, meter)

    if options.json_lines:
        threading.Thread(target=_read_stop, args=(desk,), name="darkroom-commands", daemon=True).start()
    if threading.current_thread() is threading.main_thread():
        on_signal(lambda: desk.put(commands.Stop()), again=_interrupt)
    try:
        return _done(work(Job(show, desk)), show, meter, is_json=options.json_lines)
    except (commands.StopRequested, KeyboardInterrupt):
        return _done(JobStopped(stopped), show, meter, is_json=options.json_lines)
    except (DarkroomError, OSError) as error:
        failed = error if isinstance(error, DarkroomError) else _not_written(error)
        meter.close()
        if not options.json_lines:
            raise failed from error
        show(JobFailed(redact(failed.message), redact(failed.advice)))
        return 2


def _show_on_terminal(event: JobEvent, meter: Meter) -> None:
    match event:
        case JobProgress():
            meter.progress(event.what, event.done, event.total, time_left(event.seconds_left))
        case JobNotes():
            for note in event.notes:
                meter.line(note)
        case ImageAnnotated() if event.problem:
            meter.line(f"{event.path}: {event.problem}")


def _done(end: JobFinished | JobStopped, show: Callable[[JobEvent], None], meter: Meter, *, is_json: bool) -> int:
    """Print how a job ended and return its exit code: the files it wrote to standard output, words beside it."""
    meter.close()
    if is_json:
        show(end)
    elif isinstance(end, JobStopped) or not end.paths:
        meter.line(end.message)
    else:
        for note in end.notes:
            meter.line(note)
        sys.stdout.write("".join(f"{path}\n" for path in end.paths))
    return 130 if isinstance(end, JobStopped) else 0


def _not_written(error: OSError) -> DarkroomError:
    message, advice = describe_file_error(error)
    if isinstance(error, UnconfirmedError):
        return DarkroomError(message, advice=advice)
    return DarkroomError(f"There is no result. {message} Existing files were not changed.", advice=advice)


def _interrupt() -> None:
    raise KeyboardInterrupt


def _read_stop(desk: commands.CommandDesk) -> None:
    """Read a stop from the parent process; when it has ended, stop cleanly."""
    for line in sys.stdin:
        if isinstance(commands.from_line(line), commands.Stop):
            break
    desk.put(commands.Stop())
