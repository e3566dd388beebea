"""The inbox of a run: the commands of other processes, such as a window that was opened after the run had begun.

They are lines of JSON at the end of a file, as a parent process writes them to the standard input of its child. The
file is in the run's folder; the process of a run that outlives its window has another one, which is there before the
folder is. Only the process that trains reads them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from modules.system.atomic import remove_quietly
from trainer.commands import Command, from_line, to_line

INBOX_FILE = "commands.jsonl"
_POLL_SECONDS = 0.5


class Desk(Protocol):
    """An object that receives commands, such as a `CommandDesk`."""

    def put(self, command: Command, /) -> None:
        """Add a command; never blocks."""
        ...


def send(path: Path, command: Command) -> None:
    """Send a command to the process that reads an inbox. Raises OSError."""
    with path.open("ab", buffering=0) as file:
        file.write(f"{to_line(command)}\n".encode())


@contextmanager
def open_inbox(path: Path, desk: Desk) -> Iterator[None]:
    """Put the commands on the desk that are in an inbox, and those that are sent to it while the context is open.

    Those to an earlier run were removed when the run's folder was locked: since then others take this run for alive.
    """
    over = threading.Event()
    thread = threading.Thread(target=_read, args=(path, desk, over), name="darkroom-inbox", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        remove_quietly(path)


def _read(path: Path, desk: Desk, over: threading.Event) -> None:
    num_bytes = 0
    while not over.wait(_POLL_SECONDS):
        lines, num_bytes = new_lines(path, num_bytes)
        for line in lines:
            command = from_line(line)
            if command is not None:
                desk.put(command)


def new_lines(path: Path, start: int) -> tuple[list[str], int]:
    """Return the complete lines of a file from a byte on, and the byte after them; none if it cannot be read.

    A file that is shorter has been removed and written anew: it is read from its beginning.
    """
    try:
        with path.open("rb") as file:
            start = start if file.seek(0, os.SEEK_END) >= start else 0
            file.seek(start)
            content = file.read()
    except OSError:
        return [], start
    whole = content[: content.rfind(b"\n") + 1]
    return whole.decode(errors="replace").splitlines(), start + len(whole)
