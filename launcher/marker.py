"""The launcher's files in an environment: a lock, unfinished work, installed packages, met requirements."""

import json
import os
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

from launcher.fix_commands import START
from launcher.messages import Failure, Sentence

MARKER = ".darkroom-unfinished"
LOCK = ".darkroom-lock"
RECORD = ".darkroom-packages"
MET = ".darkroom-met"

Stage = Literal["creating", "installing"]


def stage(prefix: Path) -> Stage | None:
    """The unfinished work in this environment, if any."""
    if not (prefix / MARKER).exists():
        return None
    known: Stage
    for known in get_args(Stage):
        if _read(prefix / MARKER).get("stage") == known:
            return known
    return "creating"  # the record itself is truncated: the earliest stage is the safe one


def versions_before(prefix: Path) -> Mapping[str, str]:
    """The versions of the packages that were installed before the unfinished installation."""
    known = _read(prefix / MARKER).get("before")
    return known if isinstance(known, dict) else {}


def write(prefix: Path, stage: Stage, before: Mapping[str, str] = types.MappingProxyType({})) -> None:
    """Record that work has started."""
    _write(prefix / MARKER, {"stage": stage, "before": dict(before)})


def clear(prefix: Path) -> None:
    """Record that the work has finished."""
    (prefix / MARKER).unlink(missing_ok=True)


def packages_of_launcher(prefix: Path) -> frozenset[str]:
    """The packages the launcher itself installed here, which it may therefore change."""
    return _names(_read(prefix / RECORD).get("packages"))


def add_packages(prefix: Path, names: Iterable[str]) -> None:
    """Add packages to those installed by the launcher."""
    _write(prefix / RECORD, {"packages": sorted(packages_of_launcher(prefix) | set(names))})


def are_met(prefix: Path, state: str, wanted: Iterable[str]) -> bool:
    """Whether an environment in this state was found to meet the requirements."""
    known = _read(prefix / MET)
    return known.get("state") == state and _names(known.get("met")).issuperset(wanted)


def note_met(prefix: Path, state: str, wanted: Iterable[str]) -> None:
    """Record that an environment in this state meets the requirements, which takes long to find out."""
    known = _read(prefix / MET)
    before = _names(known.get("met")) if known.get("state") == state else frozenset()
    with suppress(OSError):  # a read-only environment is checked again at the next start
        _write(prefix / MET, {"state": state, "met": sorted(before.union(wanted))})


@contextmanager
def lock(prefix: Path, wait_seconds: float, waiting: Callable[[], None]) -> Iterator[None]:
    """Lock the environment; the system releases the lock when this process and its children have ended.

    The children inherit it (those started with `close_fds=False`), so that the next start waits for a pip that outlives
    a killed launcher.
    """
    prefix.mkdir(exist_ok=True)
    with (prefix / LOCK).open("w") as file:
        deadline = time.monotonic() + wait_seconds
        while not _try_lock(file.fileno()):
            if time.monotonic() >= deadline:
                raise Failure(Sentence.BUSY, prefix=prefix, command=START)
            waiting()
            time.sleep(0.2)
        os.set_inheritable(file.fileno(), True)
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _read(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _names(value: object) -> frozenset[str]:
    return frozenset(map(str, value)) if isinstance(value, list) else frozenset()


def _write(path: Path, content: dict[str, object]) -> None:
    temporary = path.with_name(f"{path.name}-new")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.replace(path)
