"""Runs the steps from a bare Python to the running program in order; each step is a file in this folder."""

import io
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from launcher import checks, display, environment, install, interpreter, marker, requirements
from launcher.environment import Environment
from launcher.fix_commands import START, Machine
from launcher.messages import Failure, Sentence
from launcher.progress import Progress

USAGE = f"""{START}             opens the window
{START} test ...    runs the tests, with --full every row of the large matrices too; the rest goes to pytest
{START} VERB ...    python -m trainer VERB ... : train, resume, check, sample, cache and more; no display needed
{START} benchmark | make-demo-model    python -m benchmarks, python -m demo.make
"""
DEBUG = "DARKROOM_DEBUG"
_ENTERED = "DARKROOM_LAUNCHER_ENTERED"


# Neighbouring tests start in one process, which shares their fixtures; idle processes take over tests from the others.
# More than four processes run short of memory.
ALL_TESTS = ["-n", "logical", "--maxprocesses", "4", "--dist", "worksteal"]
FULL = "--full"
EVERY_ROW = ["-m", "full or not full"]

# Packages of the project that are not part of the program, by the words that run them.
OUTSIDE_THE_PROGRAM = {"benchmark": "benchmarks", "make-demo-model": "demo.make"}


class Task(NamedTuple):
    """The requested task: the module to run, and its requirements."""

    module: str
    arguments: list[str]
    extras: tuple[str, ...]
    opens_windows: bool

    @property
    def is_test(self) -> bool:
        """Whether tests open the windows; tests start their own display if Xvfb is installed."""
        return self.module == "pytest"


def task(arguments: Sequence[str]) -> Task:
    """Return the task of some arguments.

    Without a first word it is the window, for `test` pytest, for `benchmark` and `make-demo-model` their packages, and
    for any other word a verb of the command line.
    """
    if not arguments or arguments[0].startswith("-"):
        return Task("ui", list(arguments), ("ui",), True)
    if arguments[0] == "test":
        return Task("pytest", pytest_arguments(arguments[1:]), ("ui", "dev"), True)
    if arguments[0] in OUTSIDE_THE_PROGRAM:
        return Task(OUTSIDE_THE_PROGRAM[arguments[0]], list(arguments[1:]), (), False)
    return Task("trainer", list(arguments), (), False)


def pytest_arguments(given: Sequence[str]) -> list[str]:
    """Return the arguments for pytest: the given ones, else those of the daily tests in several processes.

    `--full` adds every row of the large matrices, of the tests that are also given, or of all tests.
    """
    if FULL in given:
        return [*ALL_TESTS, *EVERY_ROW, *(argument for argument in given if argument != FULL)]
    return list(given) or ALL_TESTS


def start(arguments: Sequence[str], environ: Mapping[str, str], root: Path) -> NoReturn:
    """Prepare everything and start the program; only returns by raising `Failure` or `SystemExit`."""
    wanted, machine = task(arguments), Machine.here()
    if wanted.is_test:
        display.refuse_untestable(environ, machine)
    elif wanted.opens_windows:
        display.refuse_without_display(environ)
    env = environment.choose(root, environ)
    if env.kind == "project":
        _make_usable(env, wanted, machine)
    _enter(env, arguments, environ)
    if wanted.is_test:
        display.refuse_without_tkinter(env, machine)
    elif wanted.opens_windows:
        display.refuse_without_window(env, machine)
    job = install.Job(root, env, requirements.project_requirements(root, wanted.extras), environ)
    install.ensure(job)
    checks.refuse_broken_torchvision(env)
    _execute([str(env.python), "-s", "-m", wanted.module, *wanted.arguments], _program_environ(env, environ))


def main() -> int:
    """Run the launcher; every failure ends with one sentence on stderr."""
    root = Path(__file__).resolve().parent.parent
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(USAGE, end="")
        return 0
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        start(sys.argv[1:], os.environ, root)
    except Failure as failure:
        return _report(failure)
    except KeyboardInterrupt:
        return _report(Failure(Sentence.INTERRUPTED, exit_code=130, command=START))
    except Exception as error:  # the outermost handler: the user gets a sentence
        if os.environ.get(DEBUG):
            raise
        reason = f"{type(error).__name__}: {error}"
        return _report(Failure(Sentence.UNEXPECTED, reason=reason, command=f"{DEBUG}=1 {START}"))


def _make_usable(env: Environment, wanted: Task, machine: Machine) -> None:
    """Create the project's environment if it does not exist or does not work."""
    if environment.why_unusable(env) is None:
        return
    progress = Progress()
    needs_tkinter = wanted.opens_windows
    base = interpreter.find(interpreter.candidates(), needs_tkinter=needs_tkinter, machine=machine)
    with (
        environment.write_errors_as_failures(env),
        marker.lock(env.prefix, install.WAIT_SECONDS, lambda: progress.show("Waiting for another start of Darkroom")),
    ):
        progress.close()
        reason = environment.why_unusable(env)
        if reason is None:
            return
        again = f" again because {reason}" if reason else ""
        progress.print_line(f"Creating the environment {env.prefix}{again}, with Python {base.dotted} ({base.python})")
        environment.create(env, base)


def _enter(env: Environment, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """Restart in the environment's own Python, if this is another one."""
    if Path(sys.prefix).resolve() == env.prefix.resolve():
        return
    if environ.get(_ENTERED) == str(env.prefix):
        raise Failure(
            Sentence.ACTIVE_NOT_ITSELF,
            kind=env.kind,
            prefix=env.prefix,
            actual=sys.prefix,
            command=env.leave_command,
        )
    if env.kind != "project":
        environment.check_active(env, interpreter.ask([str(env.python)]))
    command_line = [str(env.python), "-s", "-m", "launcher", *arguments]
    _execute(command_line, {**environ, _ENTERED: str(env.prefix)})


def _program_environ(env: Environment, environ: Mapping[str, str]) -> dict[str, str]:
    """The program's environment variables: as in an activated environment, without the user's site-packages."""
    given = {name: value for name, value in environ.items() if name != _ENTERED}
    given["PYTHONNOUSERSITE"] = "1"
    if env.kind == "project":
        given["VIRTUAL_ENV"] = str(env.prefix)
        given["PATH"] = f"{env.python.parent}{os.pathsep}{environ.get('PATH', '')}"
    return given


def _execute(command: list[str], environ: Mapping[str, str]) -> NoReturn:
    """Replace this process with another program; on Windows, wait for it and exit with its code."""
    sys.stdout.flush()
    sys.stderr.flush()
    if sys.platform == "win32":
        raise SystemExit(subprocess.call(command, env=dict(environ)))
    os.execve(command[0], command, dict(environ))


def _report(failure: Failure) -> int:
    print(failure, file=sys.stderr)
    return failure.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
