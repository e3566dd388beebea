"""Running a request in a child process instead of a thread, with the same events and commands.

The child stops with a backup when its parent has ended. Its log is kept if it ended unexpectedly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO
from uuid import uuid4

from modules.config.codec import export_file
from modules.system.atomic import remove_quietly
from modules.system.paths import log_dir
from trainer.child.process import Child, ChildProcess, Spawn, last_lines, spawn_python
from trainer.event_lines import from_line
from trainer.events import Event, RunFailed, RunFinished
from trainer.launch import LaunchedRun, RunRequest, launch, module_arguments, needs_own_process, num_processes
from trainer.run_status import CRASH_MESSAGE

_VERBS: Mapping[str, str] = {
    "train": "train",
    "cache": "cache",
    "resume": "resume",
    "fork": "fork",
    "fork_weights": "fork",
    "report": "report",
}
_MAX_CHARS = 400
_KILLED = -9  # by SIGKILL
_OUT_OF_MEMORY = "The system may have stopped it because the memory was full."

ChildRun = ChildProcess[Event]


def launch_as_set(request: RunRequest) -> LaunchedRun:
    """Start a run in a thread, or in a child process if it needs one or several. Raises OSError."""
    is_child = num_processes(request.config) > 1 or needs_own_process(request.config)
    return launch_child(request) if is_child else launch(request)


def launch_child(request: RunRequest, *, spawn: Spawn | None = None) -> ChildRun:
    """Start a run in a child process, or in one for each of several devices, and return at once. Raises OSError."""

    def spawn_as_set(arguments: Sequence[str], errors: IO[bytes]) -> Child:
        module = ["-m", "trainer"] if request.on else module_arguments(request.config)
        return spawn_python([*module, *arguments], errors)

    folder = log_dir()
    folder.mkdir(parents=True, exist_ok=True)
    config_file = folder / f"child-{uuid4().hex[:8]}.json"
    export_file(request.config, config_file)
    try:
        return ChildRun(
            arguments_of(request, config_file),
            read=from_line,
            ending=ending_of,
            spawn=spawn or spawn_as_set,
            discarded=config_file,
        )
    except BaseException:
        config_file.unlink(missing_ok=True)
        raise


def arguments_of(request: RunRequest, config_file: Path) -> list[str]:
    """Return the command line of a request whose config is in a file."""
    if request.kind == "follow":
        return ["remote", "attach", str(request.resume_from), "--json-lines"]
    start = [_VERBS[request.kind]]
    if request.resume_from is None:
        start += [str(config_file)]
    elif request.kind == "report":  # with the settings of the backup
        start += [str(request.resume_from)]
    else:
        start += [str(request.resume_from), "--config", str(config_file)]
    if request.kind == "fork_weights":
        start.append("--weights-only")
    start += [f"--allow-code-hash={digest}" for digest in sorted(request.allowed_code)]
    if request.replaces:
        start.append("--overwrite")
    if request.on:
        start.append(f"--on={request.on}")
    return [*start, "--json-lines"]


def ending_of(last: Event | None, code: int, log: Path) -> RunFailed | None:
    """Return the failure of a process that ended without its last event: killed, or refused before the run began."""
    if isinstance(last, RunFinished | RunFailed):
        remove_quietly(log)
        return None
    words = " ".join(last_lines(log, 2).split())[-_MAX_CHARS:]
    if code == 2 and words:  # a command or config that it refused, with its sentence
        return RunFailed(words, details_path=str(log))
    return crash(log, reason=_OUT_OF_MEMORY if code == _KILLED else "")


def crash(log: Path | None, *, reason: str = "") -> RunFailed:
    """Return the failure of a process that ended by itself or was killed; its log contains its last output."""
    advice = f"{reason} Resume the run if it has a backup; otherwise start it again.".strip()
    return RunFailed(CRASH_MESSAGE, advice, str(log or ""), is_crash=True)
