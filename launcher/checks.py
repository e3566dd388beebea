"""Whether the libraries that break most often can be imported; each is tried in a process of its own."""

import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

from launcher.environment import Environment
from launcher.fix_commands import quote
from launcher.messages import Failure, Sentence
from launcher.progress import Progress
from launcher.requirements import Installed, Package

TORCHVISION_WORKS = ".darkroom-torchvision"


def refuse_broken_torch(env: Environment, version: str, progress: Progress) -> None:
    """A torch that is there and new enough stays, but only when it works."""
    progress.show(f"Trying the torch {version} that is here")
    reason = import_error("torch")
    progress.close()
    if reason is not None:
        command = f"{quote(sys.executable)} -m pip uninstall -y torch"
        raise Failure(Sentence.TORCH_BROKEN, version=version, prefix=env.prefix, reason=reason, command=command)


def refuse_broken_torchvision(env: Environment, present: Mapping[Package, Installed]) -> None:
    """We never install torchvision; one that is there must work, or diffusers and peft do not.

    The import takes seconds, so one that works is noted beside the versions it was tried with.
    """
    if "torchvision" not in present:
        return
    tried = " ".join(f"{name} {present[name].version}" for name in ("torchvision", "torch") if name in present)
    note = env.prefix / TORCHVISION_WORKS
    if note.is_file() and note.read_text(encoding="utf-8", errors="replace") == tried:
        return
    progress = Progress()
    progress.show("Trying the torchvision that is here")
    broken = import_error("torchvision") is not None
    progress.close()
    if broken:
        command = f"{quote(sys.executable)} -m pip uninstall -y torchvision"
        raise Failure(Sentence.TORCHVISION_BROKEN, prefix=env.prefix, command=command)
    with suppress(OSError):  # an environment we may not write to is tried again at the next start
        note.write_text(tried, encoding="utf-8")


def import_error(module: str) -> str | None:
    """Why a module cannot be imported in a fresh process: the last line of its error, None when it can."""
    command = [sys.executable, "-s", "-c", f"import {module}"]
    tried = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if tried.returncode == 0:
        return None
    said = tried.stderr.strip().splitlines()
    return said[-1] if said else f"exit code {tried.returncode}"
