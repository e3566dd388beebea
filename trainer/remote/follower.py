"""The copy of a run's events and files from another machine into its folder here.

Each line of the log here ends with the byte after it in the log there: so a follower resumes where the last one ended,
however that was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO

from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason
from modules.system.paths import queue_file
from modules.system.redaction import redact
from trainer.commands import to_line as command_line
from trainer.event_lines import from_line, to_line
from trainer.events import (
    BackupSaved,
    Event,
    ModelSaved,
    RunFailed,
    RunFinished,
    RunStarted,
    StepFinished,
    WarningRaised,
)
from trainer.remote.connection import Connection, ConnectionLostError
from trainer.remote.fetching import Answers, RunFiles
from trainer.remote.line import Line
from trainer.remote.record import RemotesFile
from trainer.remote.renting import end
from trainer.run_folder.elsewhere import Elsewhere, elsewhere_of
from trainer.run_folder.event_log import EVENTS_FILE, NOT_KEPT, last_event, stamp
from trainer.run_queue.file import QueueFile

_SECONDS = 120
_MAX_CHARS = 300


def end_machine(connection: Connection, job: str, ending: Event) -> WarningRaised | None:
    """End a machine after a run whose files are all here; return a warning if it keeps running, or its command failed.

    A command may end the connection. The machine is not ended after a run that failed or was stopped, because its
    backups are there, nor, without a warning, while other runs train there or wait for it in the queue.
    """
    remote = RemotesFile().current(connection.remote)
    if not remote.is_ended_after_runs:
        return None
    if not (isinstance(ending, RunFinished) and ending.status.is_complete):
        return WarningRaised(f"{remote.name} keeps running, because the backups of this run are on it.")
    try:
        others = [name for name in connection.call("running")[0] if name != job]
        if others or any(item.is_open for item in QueueFile(queue_file()).read().on(remote.name).items):
            return None
        if remote.pod_after:
            end(remote, RemotesFile(), deletes=remote.pod_after == "delete")
            return None
        code, printed = connection.call(
            "command", arguments=["sh", "-c", remote.command_after], cwd=connection.facts["folder"], seconds=_SECONDS
        )
    except ConnectionLostError:
        return None  # the command has ended the machine
    except (DarkroomError, OSError) as error:
        reason = str(error) if isinstance(error, DarkroomError) else f"{plain_reason(error)}."
        return WarningRaised(f"{remote.name} could not be ended, and may cost. {reason}")
    if code:
        text = " ".join(printed.decode(errors="replace").split())[-_MAX_CHARS:]
        return WarningRaised(f"The command after a run failed on {remote.name}: {text or f'exit code {code}'}.")
    return None


_BYTE = "remote_byte"
_FOLLOW_SECONDS = 0.5
_MAX_TAIL_BYTES = 1 << 20
_NUM_LINES = 2
_FULL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _News:
    """The news of a run: whether it still trains, new lines of its log, and the events that it printed up to a byte.

    Nothing of it counts as copied before it is passed on: a connection may be lost in between.
    """

    is_running: bool
    lines: list[_LogLine]
    printed: list[Event]
    printed_end: int

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing new."""
        return not self.lines and not self.printed


@dataclass(frozen=True, slots=True)
class _LogLine:
    """A line of the log there, with the paths of this machine, and the byte after it there."""

    text: str
    end: int


class Follower:
    """Copies the events and the files of a run into its folder here, over one connection after another."""

    def __init__(self, run_dir: Path, line: Line) -> None:
        self._elsewhere = note_of(run_dir)
        self._run_dir, self._line = run_dir, line
        self._byte = last_byte(run_dir)
        self._live = 0 if self._byte == 0 else -1
        self._run_there = ""
        self._ending: RunFinished | RunFailed | None = None
        self._has_ended_machine = False
        self._answers = Answers(run_dir)
        self._shown: list[Event] = []  # before there was a log, which repeats them

    def follow(self, connection: Connection) -> None:
        """Follow the run to its end, or until the user leaves."""
        files: RunFiles | None = None
        with _log_of(self._run_dir) as log:
            while not self._line.is_left.is_set():
                news = self._news(connection)
                if files is None and self._run_there:
                    pass_on = partial(self._pass_commands, connection)
                    files = RunFiles(connection, self._run_there, self._run_dir, self._translate, pass_on)
                events = [event for line in news.lines if (event := from_line(line.text)) is not None]
                if files is not None and any(not isinstance(event, StepFinished) for event in events):
                    if news.is_running and _is_ending(events[-1]) and _is_then_ended(connection):
                        self._line.is_left.wait(_FOLLOW_SECONDS)  # its process has not ended
                        continue
                    is_end = _is_ending(events[-1])
                    has_backup = is_end or any(isinstance(event, BackupSaved) for event in events)
                    self._fetch(files, is_end=is_end, with_backups=has_backup and connection.remote.fetches_backups)
                    self._after(connection, events[-1])
                self._pass_on(news, log)
                # What has ended logs nothing more, so an ending that came along needs no further request.
                if self._has_ended_machine or (not news.is_running and (news.is_empty or self._ending is not None)):
                    self._end(connection, files, log)
                    return
                self._pass_commands(connection)
                if self._run_there:
                    self._answers.pass_on(connection, self._run_there)

    def run_dir_there(self, connection: Connection) -> str:
        """Return the folder of the run there; "" before it has one."""
        self._news(connection, seconds=0)
        return self._run_there

    def _news(self, connection: Connection, *, seconds: float = _FOLLOW_SECONDS) -> _News:
        facts, content = connection.call(
            "follow", job=self._elsewhere.job, log=self._byte, live=self._live, seconds=seconds
        )
        if facts is None:
            name = self._elsewhere.remote
            raise DarkroomError(f"The run was never started on {name}, or was removed there.", advice="Start it again.")
        self._run_there = facts["run_dir"]
        size = facts["num_log_bytes"]
        lines, end = [], self._byte
        for raw in content[:size].splitlines(keepends=True):
            end += len(raw)
            lines.append(_LogLine(self._local_line(raw), end))
        printed = (from_line(self._local_line(raw)) for raw in content[size:].splitlines())
        events = [event for event in printed if event is not None]
        return _News(facts["is_running"], lines, events, facts["live"] + len(content) - size)

    def _pass_commands(self, connection: Connection) -> None:
        job = self._elsewhere.job
        self._line.pass_on(lambda command: connection.call("send", f"{command_line(command)}\n".encode(), job=job))

    def _after(self, connection: Connection, last: Event) -> None:
        """After the end of a run, whose files are here, end the machine if that is wanted, once."""
        if _is_ending(last) and _is_then_ended(connection):
            self._has_ended_machine = True  # the machine may be gone: it gets no further request
            warning = end_machine(connection, self._elsewhere.job, last)
            if warning is not None:
                self._line.emit(warning)

    def _fetch(self, files: RunFiles, *, is_end: bool, with_backups: bool) -> None:
        """Fetch the files that events name, before these are passed on; at the end all files and the result."""
        files.sync(with_large=[name for name, is_wanted in (("save", is_end), ("backup", with_backups)) if is_wanted])
        if with_backups:
            files.remove_old_backups()
        if not is_end:
            return
        wanted = Path(self._elsewhere.destination)
        place = files.fetch_result(self._elsewhere.result, wanted)
        if place not in (None, wanted):
            self._line.emit(WarningRaised(f"{wanted} is taken or cannot be written; the result is in {place}."))

    def _pass_on(self, news: _News, log: BinaryIO) -> None:
        """Write the lines into the log, and show their events; of the printed ones those that no log has."""
        for event in news.printed:
            if not (self._byte or news.lines) or (isinstance(event, NOT_KEPT) and self._ending is None):
                self._show(event)
                self._shown.append(event)
        self._live = news.printed_end
        for line in news.lines:
            self._byte = line.end
            logged = from_line(line.text)
            if logged is None:
                continue
            log.write(f'{line.text[:-1]}, "{_BYTE}": {line.end}}}\n'.encode())
            if logged in self._shown:
                self._shown.remove(logged)
            else:
                self._show(logged)

    def _show(self, event: Event) -> None:
        self._line.emit(event)
        if isinstance(event, RunFinished | RunFailed):
            self._ending = event
        elif not isinstance(event, NOT_KEPT):
            self._ending = None

    def _end(self, connection: Connection, files: RunFiles | None, log: BinaryIO) -> None:
        """Report the end of a run that has ended before, or of a process that could not report it: it was killed."""
        if self._ending is not None:
            return
        if files is not None:
            self._fetch(files, is_end=True, with_backups=connection.remote.fetches_backups)
        last = last_event(self._run_dir)
        if isinstance(last, RunFinished | RunFailed):
            self._show(last)
            return
        name = self._elsewhere.remote
        printed = connection.call("output", job=self._elsewhere.job)[1].decode(errors="replace").strip()
        reason = redact(" ".join(printed.splitlines()[-_NUM_LINES:]))
        message = f"The run on {name} ended unexpectedly: its process failed or was stopped there."
        if connection.call("missing", digests=[])[0]["free_bytes"] < _FULL_BYTES:  # it could not log why it has failed
            message = f"On {name}: The disk is full: {connection.facts['folder']}."
            reason = f"{reason} Free some space there.".strip()
        ending = RunFailed(
            message,
            f"{reason} If it has a backup, resume it there: remote resume RUN. Otherwise start it again.".strip(),
            is_crash=True,
        )
        self._after(connection, ending)
        log.write(f"{to_line(ending, time=stamp(datetime.now()))}\n".encode())
        self._show(ending)

    def _local_line(self, raw: bytes) -> str:
        """Return a line of the log with local paths; failures and warnings keep the paths of the other machine."""
        line = raw.decode(errors="replace").rstrip()
        text = self._translate(line)
        event = from_line(text)
        if isinstance(event, RunStarted):
            return json.dumps({**json.loads(text), "run_dir": str(self._run_dir)})
        if isinstance(event, ModelSaved):
            return json.dumps({**json.loads(text), "path": self._place_of_model(event.path)})
        if not isinstance(event, RunFailed | WarningRaised):
            return text
        there = json.loads(line)
        message = f"On {self._elsewhere.remote}: {there['message']}"
        return json.dumps({**json.loads(text), "message": message, "advice": there.get("advice", "")})

    def _place_of_model(self, named: str) -> str:
        """Return the place of a model that the log names: a result may be replaced there, so it is one of this run."""
        path, result, run_dir = (
            Path(os.path.normpath(place)) for place in (named, self._elsewhere.destination, self._run_dir)
        )
        is_of_run = path == result or path.is_relative_to(run_dir)
        return named if is_of_run else str(self._run_dir / "save" / path.name)

    def _translate(self, text: str) -> str:
        return self._elsewhere.with_local_paths(text, self._run_there, self._run_dir)


def note_of(run_dir: Path) -> Elsewhere:
    """Return where a run is trained. Raises DarkroomError for a run of this machine."""
    elsewhere = elsewhere_of(run_dir)
    if elsewhere is None:
        raise DarkroomError(f"{run_dir} is not the folder of a run on another machine.")
    return elsewhere


def _is_then_ended(connection: Connection) -> bool:
    """Return whether the machine is ended after a run, by its record of now."""
    return RemotesFile().current(connection.remote).is_ended_after_runs


def _is_ending(event: Event) -> bool:
    return isinstance(event, RunFinished | RunFailed)


@contextmanager
def _log_of(run_dir: Path) -> Iterator[BinaryIO]:
    """Yield the log of a run, open for appending; a line that a killed process has half written is removed."""
    with (run_dir / EVENTS_FILE).open("ab+", buffering=0) as file:
        start = file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_TAIL_BYTES))
        file.truncate(start + file.read().rfind(b"\n") + 1)
        yield file


def last_byte(run_dir: Path) -> int:
    """Return up to which byte the log of the other machine is in the log here."""
    try:
        with (run_dir / EVENTS_FILE).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_TAIL_BYTES))
            whole = file.read().rpartition(b"\n")[0]
    except OSError:
        return 0
    for line in reversed(whole.splitlines()):
        try:
            byte = json.loads(line).get(_BYTE)
        except (ValueError, AttributeError):
            continue
        if isinstance(byte, int):
            return byte
    return 0
