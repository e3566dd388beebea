"""The frame of a program of the command line: its output without control characters, its errors as sentences."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence

from modules.system.errors import DarkroomError
from modules.system.file_errors import NO_THREAD, describe_file_error
from modules.system.process_setup import collection_off, hide_library_warnings, use_no_pydantic_plugins
from modules.system.redaction import redact
from trainer.cli import Verb
from trainer.cli.plain_output import plain_output

OK, FAILED, WRONG, STOPPED = 0, 1, 2, 130


def run_program(parser: Callable[[], argparse.ArgumentParser], arguments: Sequence[str] | None) -> int:
    """Read a command line, call the function `run` of its namespace, and return the exit code."""
    _show_any_name()
    with plain_output():
        return _carry_out(parser, arguments)


def run_verb(program: str, verb: Verb, arguments: Sequence[str] | None = None) -> int:
    """Run a program that consists of one verb, and return the exit code. `program` is its name in the help."""

    def parser() -> argparse.ArgumentParser:
        command = argparse.ArgumentParser(prog=program, description=verb.summary)
        verb.arguments(command)
        command.set_defaults(run=verb.run)
        return command

    return run_program(parser, arguments)


def _carry_out(parser: Callable[[], argparse.ArgumentParser], arguments: Sequence[str] | None) -> int:
    hide_library_warnings()
    use_no_pydantic_plugins()
    with collection_off():
        options = parser().parse_args(arguments)
    try:
        code = int(options.run(options))
        sys.stdout.flush()  # here, so that a closed pipe is caught below
        return code
    except DarkroomError as error:
        print(redact(f"{error.message}\n{error.advice}".strip()), file=sys.stderr)
        return WRONG
    except BrokenPipeError:  # the reader, such as head, closed the pipe early
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as error:
        message, advice = describe_file_error(error)
    except MemoryError:
        message, advice = "There is not enough memory.", "Close other programs and try again."
    except RuntimeError as error:
        if NO_THREAD not in str(error):
            raise
        message, advice = "The system could not start another thread.", "Close other programs and try again."
    print(redact(f"{message}\n{advice}".strip()), file=sys.stderr)
    return FAILED


def _show_any_name() -> None:
    """Let the output show file names that are not valid UTF-8, with escapes, instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
