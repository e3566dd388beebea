"""Checks whether the libraries that break most often can be imported, each in a process of its own."""

import importlib.util
import subprocess
import sys
from contextlib import suppress

from launcher.environment import Environment
from launcher.fix_commands import quote
from launcher.messages import Failure, Sentence
from launcher.progress import Progress
from launcher.requirements import installed_packages

TORCHVISION_WORKS = ".darkroom-torchvision"


def refuse_broken_torch(env: Environment, version: str, progress: Progress) -> None:
    """Raise `Failure` if the installed torch does not work although it is new enough to be kept."""
    progress.show(f"Checking the installed torch {version}")
    reason = import_error("torch")
    progress.close()
    if reason is not None:
        command = f"{quote(sys.executable)} -m pip uninstall -y torch"
        raise Failure(Sentence.TORCH_BROKEN, version=version, prefix=env.prefix, reason=reason, command=command)


def refuse_broken_torchvision(env: Environment) -> None:
    """Raise `Failure` if torchvision is installed but does not work: diffusers and peft fail with it.

    Darkroom never installs torchvision. The import takes seconds, so a success is recorded with the tested versions.
    """
    if importlib.util.find_spec("torchvision") is None:
        return
    present = installed_packages()
    tried = " ".join(f"{name} {present[name].version}" for name in ("torchvision", "torch") if name in present)
    note = env.prefix / TORCHVISION_WORKS
    if note.is_file() and note.read_text(encoding="utf-8", errors="replace") == tried:
        return
    progress = Progress()
    progress.show("Checking the installed torchvision")
    broken = import_error("torchvision") is not None
    progress.close()
    if broken:
        command = f"{quote(sys.executable)} -m pip uninstall -y torchvision"
        raise Failure(Sentence.TORCHVISION_BROKEN, prefix=env.prefix, command=command)
    with suppress(OSError):  # in a read-only environment it is checked again at the next start
        note.write_text(tried, encoding="utf-8")


def import_error(module: str) -> str | None:
    """Return why a module cannot be imported in a new process: the last line of its error, or None if it can."""
    command = [sys.executable, "-s", "-c", f"import {module}"]
    tried = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if tried.returncode == 0:
        return None
    lines = tried.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {tried.returncode}"
