"""Running a request in a child process instead of a thread: the same events and commands, as JSON lines. Torch-free.

The child is `python -m trainer ... --json-lines` in a process group of its own, so that Ctrl-C in a terminal reaches
only the parent, which decides. It stops with a backup when its parent has ended, because its input is then closed. What
the child writes to its standard error is kept in a log while it runs, and afterwards if it ended unexpectedly.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from modules.config.codec import export_file
from modules.system.paths import PROGRAM_ROOT, log_dir
from modules.system.redaction import redacted
from trainer.commands import Command, to_line
from trainer.event_lines import from_line
from trainer.events import Event, RunFailed, RunFinished
from trainer.launch import LaunchedRun, RunRequest, launch
from trainer.processes import num_processes, trainer_command

_VERBS: Mapping[str, str] = {
    "train": "train",
    "cache": "cache",
    "resume": "resume",
    "fork": "fork",
    "fork_weights": "fork",
}
_MAX_TAIL_BYTES, _MAX_TAIL_CHARS = 4096, 400
_KEPT_SECONDS = 7 * 24 * 3600
_OUT_OF_MEMORY = "The system may have stopped it because the memory was full."


class ChildRun:
    """A run in a child process: its events to drain, its input for commands."""

    def __init__(self, command: Sequence[str], *, log: Path, config_file: Path | None = None) -> None:
        """Start the process. `config_file` is removed when it has ended. Raises OSError."""
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._log, self._config_file = log, config_file
        self._writing = threading.Lock()
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                list(command),
                cwd=PROGRAM_ROOT,
                env={k: v for k, v in os.environ.items() if k != "DARKROOM_CALLER_DIR"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                errors="replace",
                **_own_group(),
            )
        self.thread = threading.Thread(target=self._read, name="darkroom-child-events", daemon=True)
        self.thread.start()

    def send(self, command: Command) -> None:
        """Send a command to the run. A process that has ended gets none."""
        assert self.process.stdin is not None
        with self._writing, contextlib.suppress(OSError, ValueError):
            self.process.stdin.write(to_line(command) + "\n")
            self.process.stdin.flush()

    @property
    def is_alive(self) -> bool:
        """Whether events may still arrive. Some may remain in the queue afterwards."""
        return self.thread.is_alive()

    def _read(self) -> None:
        """Pass the events on; a process that ends without a last event gets one."""
        assert self.process.stdout is not None
        has_ended = False
        with self.process.stdout as lines:
            for line in lines:
                event = from_line(line)
                if event is not None:
                    self.events.put(event)
                    has_ended = isinstance(event, RunFinished | RunFailed)
        code = self.process.wait()
        with self._writing, contextlib.suppress(OSError, ValueError):
            self.process.stdin.close()  # type: ignore[union-attr]
        if not has_ended:
            self.events.put(_ended_without_words(code, self._log))
        else:
            self._log.unlink(missing_ok=True)
        if self._config_file is not None:
            self._config_file.unlink(missing_ok=True)


def launch_as_set(request: RunRequest) -> LaunchedRun:
    """Start a run in a thread, or in child processes if it is for several devices. Raises OSError."""
    return launch(request) if num_processes(request.config) == 1 else launch_child(request)


def launch_child(request: RunRequest) -> ChildRun:
    """Start a run in a child process and return at once. Raises OSError."""
    folder = log_dir()
    folder.mkdir(parents=True, exist_ok=True)
    _remove_old(folder)
    stem = f"child-{uuid4().hex[:8]}"
    config_file = folder / f"{stem}.json"
    export_file(request.config, config_file)
    try:
        return ChildRun(command_of(request, config_file), log=folder / f"{stem}.log", config_file=config_file)
    except BaseException:
        config_file.unlink(missing_ok=True)
        raise


def command_of(request: RunRequest, config_file: Path) -> list[str]:
    """Return the command line of a request whose config is in a file."""
    start = [*trainer_command(request.config), _VERBS[request.kind]]
    if request.resume_from is None:
        start += [str(config_file)]
    else:
        start += [str(request.resume_from), "--config", str(config_file)]
    if request.kind == "fork_weights":
        start.append("--weights-only")
    if request.allowed_code:
        start.append("--allow-code")
    return [*start, "--json-lines"]


def _remove_old(folder: Path) -> None:
    """Remove what children left behind whose parents were killed, and logs of failures, after a week."""
    for file in folder.glob("child-*"):
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > _KEPT_SECONDS:
                file.unlink()


def _own_group() -> dict[str, Any]:
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def _ended_without_words(code: int, log: Path) -> RunFailed:
    """Return the failure of a process that ended without an event: killed, or refused before the run began."""
    last = _tail(log)
    if code < 0:
        name = _signal_name(-code)
        reason = _OUT_OF_MEMORY if name == "SIGKILL" else ""
        advice = f"{reason} Resume it from its newest backup, or start again.".strip()
        return RunFailed(f"The training process was killed ({name}).", advice, str(log))
    if code == 2 and last:  # a command or config that it refused, with its sentence
        return RunFailed(last, details_path=str(log))
    reason = f": {last}" if last else ""
    return RunFailed(f"The training process ended unexpectedly with code {code}{reason}", details_path=str(log))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tail(log: Path) -> str:
    """Return the last lines of a log, without secrets."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return redacted(" ".join(lines[-2:]))[-_MAX_TAIL_CHARS:]
