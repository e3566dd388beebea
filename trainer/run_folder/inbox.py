"""The inbox of a run: the commands of other processes, such as a window that was opened after the run had begun.

They are lines of JSON at the end of a file in the run's folder, as a parent process writes them to the standard input
of its child. Only the process that trains reads them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from modules.system.atomic import remove_quietly
from trainer.commands import Command, CommandDesk, from_line, to_line

INBOX_FILE = "commands.jsonl"
_POLL_SECONDS = 0.5


def send(run_dir: Path, command: Command) -> None:
    """Send a command to the process that trains in a run's folder. Raises OSError."""
    with (run_dir / INBOX_FILE).open("ab", buffering=0) as file:
        file.write(f"{to_line(command)}\n".encode())


@contextmanager
def open_inbox(run_dir: Path, desk: CommandDesk) -> Iterator[None]:
    """Put on the desk what is sent to a run while the context is open; what was sent to an earlier attempt is lost."""
    path, over = run_dir / INBOX_FILE, threading.Event()
    remove_quietly(path)
    thread = threading.Thread(target=_read, args=(path, desk, over), name="darkroom-inbox", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        remove_quietly(path)


def _read(path: Path, desk: CommandDesk, over: threading.Event) -> None:
    num_bytes = 0
    while not over.wait(_POLL_SECONDS):
        lines, num_bytes = new_lines(path, num_bytes)
        for line in lines:
            command = from_line(line)
            if command is not None:
                desk.put(command)


def new_lines(path: Path, start: int) -> tuple[list[str], int]:
    """Return the complete lines of a file from a byte on, and the byte after them; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            content = file.read()
    except OSError:
        return [], start
    whole = content[: content.rfind(b"\n") + 1]
    return whole.decode(errors="replace").splitlines(), start + len(whole)
