"""A job in a child process: its events, and what the window sends to it. No Tk.

The window imports no torch: a tool or a sampler is `python -m trainer VERB ... --json-lines`. The child stops when its
standard input ends, so it never outlives the window.
"""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Protocol

from modules.system.paths import PROGRAM_ROOT
from trainer import commands
from trainer.job_events import JobEvent, job_event

_KEPT_LINES = 40


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

    @property
    def stderr(self) -> Iterable[str] | None:
        """The lines of its standard error."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return its exit code."""
        ...


Spawn = Callable[[Sequence[str]], Child]


def spawn_trainer(arguments: Sequence[str]) -> Child:
    """Start `python -m trainer` with these arguments."""
    return subprocess.Popen(
        [sys.executable, "-m", "trainer", *arguments],
        cwd=PROGRAM_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )


class Ended:
    """The child has ended: its exit code, and the last lines of its standard error."""

    def __init__(self, code: int, errors: str) -> None:
        self.code = code
        self.errors = errors


class JobProcess:
    """A child process; `drain` hands over its events on the caller's thread, the last one is its end."""

    def __init__(self, arguments: Sequence[str], *, spawn: Spawn = spawn_trainer) -> None:
        self._child = spawn(arguments)
        self._events: queue.SimpleQueue[JobEvent | Ended] = queue.SimpleQueue()
        self._errors: deque[str] = deque(maxlen=_KEPT_LINES)
        self.has_ended = False
        self._error_thread = threading.Thread(target=self._listen, name="darkroom-job", daemon=True)
        self._error_thread.start()  # first: a child that has ended at once is waited for by both
        threading.Thread(target=self._read, name="darkroom-job", daemon=True).start()

    def drain(self, take: Callable[[JobEvent | Ended], None]) -> bool:
        """Hand over all events that have arrived; return whether there were any."""
        has_any = False
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                return has_any
            has_any = True
            if isinstance(event, Ended):
                self.has_ended = True
            take(event)

    def send(self, line: str) -> None:
        """Send a line; nothing if the child has ended."""
        with contextlib.suppress(OSError, ValueError):
            if self._child.stdin is not None:
                self._child.stdin.write(f"{line}\n")
                self._child.stdin.flush()

    def stop(self) -> None:
        """Ask the child to stop what it does."""
        self.send(commands.to_line(commands.Stop()))

    def close(self) -> None:
        """Let the child end: there is nothing more to come."""
        with contextlib.suppress(OSError, ValueError):
            if self._child.stdin is not None:
                self._child.stdin.close()

    def _read(self) -> None:
        for line in self._child.stdout or ():
            event = job_event(line)
            if event is not None:
                self._events.put(event)
        code = self._child.wait()
        self._error_thread.join(timeout=5)
        self._events.put(Ended(code, "".join(self._errors)))

    def _listen(self) -> None:
        for line in self._child.stderr or ():
            self._errors.append(line)
