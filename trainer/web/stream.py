"""The stream of a page (server-sent events): the list of runs with the queue, and one run as it trains.

A message carries the position in the run's log up to which the page has read. A browser that lost the connection sends
the newest position, and gets the rest.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from modules.system.file_errors import plain_reason
from modules.system.regular_files import size_of_file
from trainer.commands import Command
from trainer.run_folder import inbox
from trainer.run_folder.backup import list_backups
from trainer.run_folder.choices import all_requests, answer_of
from trainer.run_folder.elsewhere import elsewhere_of
from trainer.run_folder.event_log import EVENTS_FILE
from trainer.run_folder.run_lock import holder_of
from trainer.web.downloads import downloads_of
from trainer.web.shown import Shown, Verdict, has_measurement, shown_history, shown_line
from trainer.web.starts import Start

_OVERVIEW_EVERY = 4  # looks


class Recent:
    """The part that all pages share: built for one of them, and again once it is old."""

    def __init__(
        self, build: Callable[[], Shown], seconds: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._build, self._seconds, self._clock = build, seconds, clock
        self._lock = threading.Lock()
        self._built: Shown = {}
        self._at = -math.inf

    def __call__(self) -> Shown:
        """Return it, at most so many seconds old. For threads: they wait for the one that builds it."""
        with self._lock:
            if self._clock() - self._at >= self._seconds:
                self._built, self._at = self._build(), self._clock()
            return self._built


class Feed:
    """The messages for one page. `overview` returns the list of runs; `run_dir` is the run that the page shows.

    `start_of(run_dir)` returns how its newest start stands.
    """

    def __init__(
        self,
        overview: Callable[[], Shown],
        run_dir: Path | None,
        last_id: str = "",
        *,
        start_of: Callable[[Path], Start] = lambda _run_dir: Start(),
    ) -> None:
        self._overview, self._run_dir, self._start_of = overview, run_dir, start_of
        self._num_bytes = int(last_id) if last_id.isascii() and last_id.isdigit() and len(last_id) < 16 else 0
        self._verdict, self._verdict_bytes = Verdict(), 0  # a place of its own in the log
        self._num_looks = 0
        self._sent: dict[str, str] = {}

    def next(self) -> str:
        """Return the messages since the last look; empty for none."""
        messages = [] if self._run_dir is None else self._of_run(self._run_dir)
        if self._num_looks % _OVERVIEW_EVERY == 0:
            messages.append(self._if_new("overview", self._overview()))
        self._num_looks += 1
        return "".join(messages)

    def _of_run(self, run_dir: Path) -> list[str]:
        state = state_of(run_dir, self._start_of(run_dir))  # before the log: no event can follow the last one
        if size_of_file(run_dir / EVENTS_FILE) < self._num_bytes:  # another log
            self._num_bytes = 0
            self._verdict, self._verdict_bytes = Verdict(), 0
        is_first = self._num_bytes == 0
        lines, self._num_bytes = inbox.new_lines(run_dir / EVENTS_FILE, self._num_bytes)
        messages = []
        if is_first:
            messages.append(self._if_new("history", shown_history(lines, run_dir), self._num_bytes))
        elif shown := [one for line in lines if (one := shown_line(line, run_dir)) is not None]:
            messages.append(_message("news", shown, self._num_bytes))
        if has_measurement(lines):
            further, self._verdict_bytes = inbox.new_lines(run_dir / EVENTS_FILE, self._verdict_bytes)
            messages.append(self._if_new("verdict", self._verdict.add(further)))
        return [*messages, self._if_new("state", state)]

    def _if_new(self, kind: str, content: Any, place: int | None = None) -> str:
        message = _message(kind, content, place)
        if self._sent.get(kind) == message:
            return ""
        self._sent[kind] = message
        return message


def state_of(run_dir: Path, start: Start) -> Shown:
    """Return the state of a run besides its events: whether it trains, its choices to make, what can be downloaded.

    `start` is its newest start.
    """
    elsewhere, is_running = elsewhere_of(run_dir), holder_of(run_dir) is not None
    requests = all_requests(run_dir)
    return {
        "running": is_running,
        "starting": start.is_under_way,
        "refused": start.refusal,
        "remote": elsewhere.remote if elsewhere is not None else "",
        "backups": len(list_backups(run_dir)),
        "choices": [
            {"name": r.name, "prompt": r.prompt, "images": len(r.images), "open": answer_of(r) is None}
            for r in requests
        ],
        "files": [
            {"id": name, "name": file.name, "bytes": file.size_bytes, "result": bool(file.written)}
            for name, file in downloads_of(run_dir).items()
        ],
    }


def send(run_dir: Path, command: Command) -> str:
    """Send a command to a run, and return why that failed; empty if it did not."""
    if holder_of(run_dir) is None:
        return "The run does not train any more."
    try:
        inbox.send(run_dir / inbox.INBOX_FILE, command)
    except OSError as error:
        return f"The command could not be written: {plain_reason(error)}."
    return ""


def _message(kind: str, content: Any, place: int | None = None) -> str:
    number = "" if place is None else f"id: {place}\n"
    return f"{number}event: {kind}\ndata: {json.dumps(content)}\n\n"
