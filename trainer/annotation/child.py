"""Captions and masks in a child process, for the window: its events to drain, and Stop. Torch-free.

The child stops after the current image when it reads a line, or the end, on its standard input: so it also ends with
the window.
"""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from modules.system.paths import PROGRAM_ROOT
from trainer.annotation.events import AnnotationEvent, Failed, Finished, from_line

_MAX_LINES = 20
_STOP = "stop\n"


class AnnotationProcess:
    """A running child; `events` ends with Finished or Failed, whatever happens to it."""

    def __init__(self, command: Sequence[str], folder: Path = PROGRAM_ROOT) -> None:
        self.events: queue.SimpleQueue[AnnotationEvent] = queue.SimpleQueue()
        self._errors: deque[str] = deque(maxlen=_MAX_LINES)
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),  # Windows would open a console
        )
        reader = threading.Thread(target=self._read, name="darkroom-annotation", daemon=True)
        reader.start()

    def stop(self) -> None:
        """Stop after the current image."""
        with contextlib.suppress(OSError, ValueError):  # it is over already
            assert self._process.stdin is not None
            self._process.stdin.write(_STOP)
            self._process.stdin.flush()

    def close(self) -> None:
        """End the child now. Every file is written atomically, so none is half written."""
        self._process.terminate()

    def _read(self) -> None:
        process = self._process
        assert process.stdout is not None
        assert process.stderr is not None
        errors = threading.Thread(target=self._errors.extend, args=(process.stderr,), daemon=True)
        errors.start()
        is_over = False
        for line in process.stdout:
            event = from_line(line)
            if event is not None:
                is_over |= isinstance(event, Finished | Failed)
                self.events.put(event)
        process.wait()
        errors.join(timeout=5)
        for stream in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(OSError, ValueError):
                if stream is not None:
                    stream.close()
        if not is_over:
            last = " ".join(line.strip() for line in self._errors)[-600:]
            self.events.put(Failed(f"The process ended unexpectedly (code {process.returncode}). {last}".strip()))


def command_of(arguments: Sequence[str]) -> list[str]:
    """Return the command line of a child for the arguments of a verb."""
    return [sys.executable, "-m", "trainer", *arguments, "--events"]


def stop_signal(stream: TextIO) -> Callable[[], bool]:
    """Return a function that returns whether the parent asked to stop, or is gone; `stream` is the standard input."""
    asked = threading.Event()

    def wait() -> None:
        stream.readline()
        asked.set()

    threading.Thread(target=wait, name="darkroom-stop", daemon=True).start()
    return asked.is_set
