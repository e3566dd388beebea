"""Runs on another machine: begun there, followed to their end, resumed, and their files fetched.

The process that follows a run holds the lock of its folder here and reads its inbox, as a process that trains would. So
the window and all else see a run of another process. The run itself continues when this process has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

from modules.config.codec import export_file, load_file
from modules.rewards.user_code_file import approved_hashes
from modules.system.atomic import remove_folder
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from trainer.events import WarningRaised
from trainer.launch import RunRequest
from trainer.remote.connection import Connection
from trainer.remote.fetching import RunFiles
from trainer.remote.follower import Follower, last_byte, note_of
from trainer.remote.line import Connect, Line, persistently
from trainer.remote.record import Remote
from trainer.remote.starting import prepare, send_inputs, start_there
from trainer.run_folder.destination import HOW_TO_REPLACE, note_destination, resolved_destination, taken_by
from trainer.run_folder.elsewhere import note_elsewhere
from trainer.run_folder.inbox import INBOX_FILE, open_inbox
from trainer.run_folder.run_dir import new_run_dir
from trainer.run_folder.run_lock import RunLock


def train_there(remote: Remote, request: RunRequest, line: Line, *, connect: Connect = Connection) -> None:
    """Send the files of a run to another machine, start it there, and follow it until it ends or the user leaves.

    Its last event reports the end. A run that the machine refuses leaves no folder here, as on this machine. Raises
    DarkroomError, StopRequested before it has begun, OSError.
    """
    begun: list[Path] = []
    with ExitStack() as stack:
        followers: list[Follower] = []

        def work(connection: Connection) -> None:
            if not followers:
                prepared = prepare(connection, request.config, emit=line.emit, check=line.check)
                if not begun:
                    begun.append(_begin(connection, request, line))
                elsewhere = note_of(begun[0])
                allowed = request.allowed_code | approved_hashes()
                start_there(connection, prepared, elsewhere, allowed_code=allowed)
                stack.enter_context(_own_folder(begun[0], line))
                followers.append(Follower(begun[0], line))
            followers[0].follow(connection)

        persistently(remote, line, work, connect=connect)
    if begun and not last_byte(begun[0]) and not line.is_left.is_set():
        remove_folder(begun[0])


def resume_run_there(remote: Remote, run_dir: Path, line: Line) -> None:
    """Resume a run on the machine where it is, from its newest backup there, and follow it. Raises as `train_there`."""
    config = load_file(run_dir / "config.json").config
    with _own_folder(run_dir, line):
        follower = Follower(run_dir, line)

        def start(connection: Connection) -> None:
            prepared = prepare(connection, config, emit=line.emit, check=line.check)
            start_there(connection, prepared, note_of(run_dir), resumed=follower.run_dir_there(connection))

        persistently(remote, line, start)
        persistently(remote, line, follower.follow)


def follow(remote: Remote, run_dir: Path, line: Line, *, connect: Connect = Connection) -> None:
    """Follow a run until it ends, which its last event reports, or the user leaves.

    Raises DarkroomError if another process follows it already, or the machine cannot be reached; OSError.
    """
    with _own_folder(run_dir, line):
        persistently(remote, line, Follower(run_dir, line).follow, connect=connect)


def fetch_now(connection: Connection, run_dir: Path, with_large: Collection[str]) -> Path | None:
    """Fetch the files of a run as they are now, and return its result if it is there.

    Raises DarkroomError, ConnectionLostError, OSError.
    """
    elsewhere = note_of(run_dir)
    there = Follower(run_dir, Line(lambda event: None)).run_dir_there(connection)
    if not there:
        raise DarkroomError(f"The run has no folder on {elsewhere.remote} yet.", advice="Try again later.")
    files = RunFiles(connection, there, run_dir, lambda text: elsewhere.with_local_paths(text, there, run_dir))
    files.sync(with_large=with_large)
    return files.fetch_result(elsewhere.result, Path(elsewhere.destination))


def _begin(connection: Connection, request: RunRequest, line: Line) -> Path:
    """Send the files of a run, and return its new folder here. Raises DarkroomError, ConnectionLostError, OSError."""
    asked = request.config
    config = asked if request.replaces else resolved_destination(asked)
    if config is not asked and (taken := taken_by(asked)) is not None:
        line.emit(WarningRaised(taken.message, HOW_TO_REPLACE))
    elsewhere = send_inputs(connection, config, emit=line.emit, check=line.check)
    run_dir = new_run_dir(from_root(config.general.workspace_dir), now=datetime.now())
    note_elsewhere(run_dir, elsewhere)
    export_file(config, run_dir / "config.json")
    note_destination(run_dir, asked=asked.output.destination, chosen=config.output.destination)
    return run_dir


@contextmanager
def _own_folder(run_dir: Path, line: Line) -> Iterator[None]:
    """Hold the lock of a run's folder and read its inbox, as a process that trains the run would."""
    lock = RunLock(run_dir)
    try:
        with open_inbox(run_dir / INBOX_FILE, line.commands):
            yield
    finally:
        lock.release()
