"""Chooses the Python from which the project's own environment is created."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from launcher.fix_commands import Machine, tkinter_command, venv_command
from launcher.messages import Failure, Sentence

OLDEST = (3, 11)
NEWEST = (3, 14)

# Runs in any Python that is found, so it must be valid in all versions.
_PROBE = """
import json, sys
def has(name):
    try:
        __import__(name)
    except Exception:
        return False
    return True
print(json.dumps([
    getattr(sys, "_base_executable", None) or sys.executable,
    list(sys.version_info[:3]), has("tkinter"), has("venv") and has("ensurepip"),
]))
"""


class Interpreter(NamedTuple):
    """A Python with its version and its relevant modules."""

    command: tuple[str, ...]
    python: Path
    version: tuple[int, int, int]
    has_tkinter: bool
    has_venv: bool

    @property
    def fits(self) -> bool:
        """Whether Darkroom supports this version."""
        return OLDEST <= self.version[:2] <= NEWEST

    @property
    def dotted(self) -> str:
        """The version as text, as in 3.12.1."""
        return ".".join(map(str, self.version))


def ask(command: Sequence[str]) -> Interpreter | None:
    """Return the properties of the Python behind this command, None if it does not run."""
    try:
        answer = subprocess.run([*command, "-c", _PROBE], capture_output=True, text=True, timeout=60)
        executable, version, has_tkinter, has_venv = json.loads(answer.stdout)
        return Interpreter(tuple(command), Path(executable), tuple(version), has_tkinter, has_venv)
    except (OSError, ValueError, TypeError, subprocess.SubprocessError):
        return None


def candidates() -> list[list[str]]:
    """The commands to try, in order; the current Python is the last resort."""
    minors = range(NEWEST[1], OLDEST[1] - 1, -1)
    current = getattr(sys, "_base_executable", None) or sys.executable
    if sys.platform == "win32":
        return [["py", "-3"], *(["py", f"-3.{minor}"] for minor in minors), ["python"], [current]]
    return [["python3"], *([f"python3.{minor}"] for minor in minors), ["python"], [current]]


def find(
    commands: Iterable[Sequence[str]],
    *,
    needs_tkinter: bool,
    machine: Machine,
    ask: Callable[[Sequence[str]], Interpreter | None] = ask,
) -> Interpreter:
    """The first Python that has everything needed, preferring one with tkinter even if it is not needed.

    Raises `Failure` with what the first Python of a supported version lacks.
    """
    fitting: list[Interpreter] = []
    for command in commands:
        interpreter = ask(command)
        if interpreter is None or not interpreter.fits:
            continue
        if interpreter.has_tkinter and interpreter.has_venv:
            return interpreter
        fitting.append(interpreter)
    with_venv = [interpreter for interpreter in fitting if interpreter.has_venv]
    if with_venv and not needs_tkinter:
        return with_venv[0]
    first = with_venv[0] if with_venv else fitting[0]
    version = first.version[:2]
    if not first.has_venv:
        command = venv_command(machine, first.python, version)
        raise Failure(Sentence.NO_VENV, version=first.dotted, python=first.python, command=command)
    command = tkinter_command(machine, first.python, version, None)
    raise Failure(Sentence.NO_TKINTER, version=first.dotted, python=first.python, command=command)
