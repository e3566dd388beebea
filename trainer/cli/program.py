"""The frame of a program of the command line: its verbs, its output without control characters, its errors."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO, cast

from modules.system.errors import DarkroomError
from modules.system.file_errors import NO_THREAD, describe_file_error, is_failure_of_machine
from modules.system.process_setup import (
    collection_off,
    hide_library_warnings,
    open_missing_streams,
    use_no_pydantic_plugins,
)
from modules.system.redaction import redact
from trainer.events import RunFailed, RunFinished
from trainer.run_status import RunStatus

OK, FAILED, WRONG, STOPPED = 0, 1, 2, 130
"""The exit codes of all verbs, which `python -m trainer --help` explains."""
_LEFT = "\n\t"
_DIRECTION = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_SURROGATES = range(0xD800, 0xE000)  # bytes of file names that are not valid UTF-8; no stream could write them
_CONTROLS = (*range(0x20), *range(0x7F, 0xA0), *map(ord, _DIRECTION), *_SURROGATES)
_ESCAPES = {code: f"\\u{code:04x}" for code in _CONTROLS if chr(code) not in f"{_LEFT}\r"}  # as in JSON, which stays so


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb: a one-line summary, its arguments, and the function that runs it and returns the exit code."""

    summary: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_verbs(
    parser: argparse.ArgumentParser,
    verbs: Mapping[str, Verb],
    *,
    metavar: str = "VERB",
    dest: str = "run_verb",
    with_arguments: bool = True,
) -> None:
    """Add verbs to a parser, whose namespace has the `run` of the chosen one as `dest`.

    Their own arguments are not needed to list them.
    """
    commands = parser.add_subparsers(metavar=metavar, required=True)
    for name, verb in verbs.items():
        begin, rest = verb.summary[:1], verb.summary[1:]
        command = commands.add_parser(name, help=begin.lower() + rest, description=f"{begin.upper()}{rest}.")
        if with_arguments:
            verb.arguments(command)
        command.set_defaults(**{dest: verb.run}, parser=command)


def verb_group(summary: str, actions: Mapping[str, Verb]) -> Verb:
    """Return a verb that consists of actions, as in `queue list` and `queue add`."""

    def add_actions(parser: argparse.ArgumentParser) -> None:
        add_verbs(parser, actions, metavar="ACTION", dest="run_action")

    return Verb(summary, add_actions, lambda options: int(options.run_action(options)))


def exit_code_of(error: DarkroomError | OSError) -> int:
    """Return FAILED for an error of the machine, such as a full disk, WRONG for an error that the user has to fix."""
    is_full = isinstance(error, DarkroomError) and error.remedy == "space"
    return FAILED if is_full or any(map(is_failure_of_machine, (error, error.__cause__))) else WRONG


def exit_code_of_run(end: RunFinished | RunFailed) -> int:
    """Return the exit code of a run; WRONG if its config was refused, unless only disk space is missing."""
    if isinstance(end, RunFailed):
        return WRONG if end.is_refused and end.remedy != "space" else FAILED
    return STOPPED if end.status is RunStatus.STOPPED else OK


def run_program(parser: Callable[[], argparse.ArgumentParser], arguments: Sequence[str] | None) -> int:
    """Read a command line, call the function `run_verb` of its namespace, and return the exit code."""
    open_missing_streams()
    _show_any_name()
    with plain_output():
        return _carry_out(parser, arguments)


def run_verb(program: str, verb: Verb, arguments: Sequence[str] | None = None) -> int:
    """Run a program that consists of one verb, and return the exit code. `program` is its name in the help."""

    def parser() -> argparse.ArgumentParser:
        command = argparse.ArgumentParser(prog=program, description=verb.summary)
        verb.arguments(command)
        command.set_defaults(run_verb=verb.run)
        return command

    return run_program(parser, arguments)


def _carry_out(parser: Callable[[], argparse.ArgumentParser], arguments: Sequence[str] | None) -> int:
    hide_library_warnings()
    use_no_pydantic_plugins()
    try:
        with collection_off():
            program = parser()
            options, unknown = program.parse_known_args(arguments)
        if unknown:
            getattr(options, "parser", program).error(f"unrecognized arguments: {' '.join(unknown)}")
        from modules.system.allocator import use_growing_segments  # which reads the metadata of packages

        use_growing_segments()
        code = int(options.run_verb(options))
        sys.stdout.flush()  # here, so that a closed pipe is caught below
        return code
    except DarkroomError as error:
        message, advice, code = error.message, error.advice, exit_code_of(error)
    except BrokenPipeError:  # the reader, such as head, closed the pipe early
        silence(sys.stdout)
        return OK
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return STOPPED
    except OSError as error:
        (message, advice), code = describe_file_error(error), exit_code_of(error)
    except MemoryError:
        message, advice, code = "There is not enough memory.", "Close other programs and try again.", FAILED
    except RuntimeError as error:
        if NO_THREAD not in str(error):
            raise
        message, code = "The system could not start another thread.", FAILED
        advice = "Close other programs and try again."
    print(redact(f"{message}\n{advice}".strip()), file=sys.stderr)
    return code


def silence(stream: TextIO) -> None:
    """Redirect a stream that cannot be written any more to nowhere: its buffer would fail again at exit.

    Python then ends with the exit code 120. Raises OSError for a stream without a file.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _show_any_name() -> None:
    """Let the output show file names that are not valid UTF-8, with escapes, instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def plain(text: str) -> str:
    """Return a text with control characters, changes of the writing direction and invalid bytes as escapes.

    Line breaks and tabs stay, and so does a carriage return at either end or before a line break: progress bars write
    them, and inside a text they would hide what is before them.
    """
    text = text.translate(_ESCAPES)
    if "\r" not in text:
        return text
    body = text.strip("\r")
    begin, end = text[: len(text) - len(text.lstrip("\r"))], text[len(text.rstrip("\r")) :]
    inner = body.replace("\r\n", "\n").replace("\r", "\\u000d")
    return f"{begin}{inner}{end}" if body else text


class PlainStream:
    """A text stream that writes `plain` texts; everything else comes from the stream below it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text and return its length."""
        self._stream.write(plain(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def plain_output() -> Iterator[None]:
    """Let everything that is printed meanwhile go through `plain`: the verbs, progress bars, warnings and logs."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", PlainStream(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
