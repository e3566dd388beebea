"""A child process that reports events as lines of JSON and reads commands from its standard input.

The child is `python -m trainer VERB ...` in a separate process group: Ctrl-C in a terminal reaches only the parent,
which decides. Its input is closed when the parent has ended, and then it stops: so it never outlives the parent. What
it writes to its standard error is kept in a log while it runs.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Generic, Protocol, TypeVar
from uuid import uuid4

from modules.system.atomic import remove_quietly
from modules.system.paths import PROGRAM_ROOT, log_dir
from modules.system.process_setup import own_process_group
from modules.system.redaction import redact
from trainer.commands import Command, Stop, to_line

_MAX_TAIL_BYTES = 4096
_KEPT_SECONDS = 7 * 24 * 3600
_EventT = TypeVar("_EventT")


class Child(Protocol):
    """A running child process, as `subprocess.Popen` has it."""

    @property
    def stdin(self) -> IO[str] | None:
        """Its standard input."""
        ...

    @property
    def stdout(self) -> Iterable[str] | None:
        """The lines of its standard output."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return its exit code."""
        ...


Spawn = Callable[[Sequence[str], IO[bytes]], Child]


def spawn_trainer(arguments: Sequence[str], errors: IO[bytes]) -> Child:
    """Start `python -m trainer` with these arguments; its standard error goes to a file. Raises OSError."""
    return spawn_python(["-m", "trainer", *arguments], errors)


def spawn_python(arguments: Sequence[str], errors: IO[bytes] | int) -> subprocess.Popen[str]:
    """Start Python with these arguments; its standard error goes to a file. Raises OSError."""
    return _popen(arguments, errors, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def detached_python(arguments: Sequence[str], output: IO[bytes] | int, errors: IO[bytes]) -> int:
    """Start Python with these arguments, without pipes: it outlives this process. Return its id. Raises OSError."""
    process = _popen(arguments, errors, stdin=subprocess.DEVNULL, stdout=output)
    process.returncode = 0  # no wait for it, about which Python would warn
    return process.pid


def _popen(
    arguments: Sequence[str], errors: IO[bytes] | int, *, stdin: int, stdout: IO[bytes] | int
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-s", *arguments],
        cwd=PROGRAM_ROOT,
        env={k: v for k, v in os.environ.items() if k != "DARKROOM_CALLER_DIR"},
        stdin=stdin,
        stdout=stdout,
        stderr=errors,
        text=True,
        encoding="utf-8",
        errors="replace",
        **own_process_group(),
    )


class ChildProcess(Generic[_EventT]):
    """A running child: its events to drain, its input for commands."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        read: Callable[[str], _EventT | None],
        ending: Callable[[_EventT | None, int, Path], _EventT | None],
        spawn: Spawn = spawn_trainer,
        discarded: Path | None = None,
    ) -> None:
        """Start the process. Raises OSError.

        `read(line)` returns the event of a line, or None for any other line. `ending(last, code, log)` returns the
        event to add when the process has ended, if any; it is given its last event and its exit code, and removes its
        log if it is not needed. `discarded` is a file to remove at the end.
        """
        self.events: queue.SimpleQueue[_EventT] = queue.SimpleQueue()
        self._read_line, self._ending, self._discarded = read, ending, discarded
        self._writing = threading.Lock()
        self._log = new_log()
        with _open_log(self._log) as errors:
            self.process = spawn(arguments, errors)
        self.thread = threading.Thread(target=self._read, name="darkroom-child-events", daemon=True)
        self.thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether events may still arrive. Some may remain in the queue afterwards."""
        return self.thread.is_alive()

    def waiting(self) -> Iterator[_EventT]:
        """Yield the events that have arrived."""
        while True:
            try:
                yield self.events.get_nowait()
            except queue.Empty:
                return

    def send(self, command: Command) -> None:
        """Send a command. A process that has ended gets none."""
        self.send_line(to_line(command))

    def send_line(self, line: str) -> None:
        """Send a line. A process that has ended gets none."""
        with self._writing, contextlib.suppress(OSError, ValueError):
            if self.process.stdin is not None:
                self.process.stdin.write(f"{line}\n")
                self.process.stdin.flush()

    def stop(self) -> None:
        """Ask the child to stop."""
        self.send(Stop())

    def leave(self) -> None:
        """Let it end by itself, also after the end of this process: a run stops with a backup."""
        self.close()

    def close(self) -> None:
        """Close its input: it stops what it does, and ends."""
        with self._writing, contextlib.suppress(OSError, ValueError):
            if self.process.stdin is not None:
                self.process.stdin.close()

    def _read(self) -> None:
        last: _EventT | None = None
        for line in self.process.stdout or ():
            event = self._read_line(line)
            if event is not None:
                last = event
                self.events.put(event)
        code = self.process.wait()
        self.close()
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self.process.stdout.close()  # type: ignore[union-attr]
        end = self._ending(last, code, self._log)
        if self._discarded is not None:
            remove_quietly(self._discarded)
        if end is not None:
            self.events.put(end)


def last_lines(log: Path, count: int) -> str:
    """Return the last lines of a log that are not empty, without secrets; "" if it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return redact("\n".join([line.rstrip() for line in text.splitlines() if line.strip()][-count:]))


def _open_log(log: Path) -> IO[bytes]:
    """Return the log, open for writing; if that fails, as on a full disk, nothing of it is kept."""
    try:
        return log.open("wb")
    except OSError:
        return Path(os.devnull).open("wb")


def new_log() -> Path:
    """Return the path of a new log; remove old ones, and what lies next to them.

    They are left behind by children whose parents were killed, and by failures; they are kept for a week.
    """
    folder = log_dir()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    for file in folder.glob("child-*"):
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > _KEPT_SECONDS:
                file.unlink()
    return folder / f"child-{uuid4().hex[:8]}.log"
