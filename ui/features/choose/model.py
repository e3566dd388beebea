"""A person's choices among images of a run: the open requests, the images marked so far, and undo.

Files are read and written in the background, one job after the other, so that a read never overtakes a write.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from modules.system.file_errors import plain_reason
from trainer.run_folder.choices import SKIP, TIE, Answer, Request, answer, open_requests, take_back
from ui.loop.background import Background
from ui.loop.signal import Signal

_log = logging.getLogger(__name__)
IN_USE, WITHDRAWN = "The run has already used this choice.", "This request is not open any more."
_Work = Callable[[], Any]
_Done = Callable[[Any], None]


class Choosing:
    """The requests of one run's folder, asked in their order; `changed` is emitted after each change."""

    def __init__(self, background: Background) -> None:
        self.run_dir: Path | None = None
        self.best: int | None = None  # marked; the worst of several images is not chosen yet
        self.message = ""  # what happened to the last choice
        self.changed: Signal[[]] = Signal()
        self._background = background
        self._open: list[Request] = []
        self._answered: list[Request] = []  # since nothing was open
        self._pending_jobs: deque[tuple[_Work, _Done]] = deque()
        self._is_busy = False
        self._unwritten: set[str] = set()

    @property
    def request(self) -> Request | None:
        """The request to answer now, or None."""
        return self._open[0] if self._open else None

    @property
    def following(self) -> Request | None:
        """The request after it, whose images can be loaded ahead."""
        return self._open[1] if len(self._open) > 1 else None

    @property
    def position(self) -> tuple[int, int]:
        """The number of the current request, counted from 1, and how many there are with those already answered."""
        total = len(self._answered) + len(self._open)
        return min(len(self._answered) + 1, total), total

    @property
    def needs_worst(self) -> bool:
        """Whether the best of several images is marked, and the worst is still to be chosen."""
        return self.best is not None

    @property
    def can_undo(self) -> bool:
        """Whether there is a mark or a choice to undo."""
        return self.best is not None or bool(self._answered)

    def open(self, run_dir: Path | None) -> None:
        """Show the requests of a run's folder; None shows none."""
        if run_dir != self.run_dir:
            self.run_dir = run_dir
            self._open, self._answered, self.best, self.message = [], [], None, ""
            self.changed()
        self.refresh()

    def refresh(self) -> None:
        """Read the folder again."""
        if self.run_dir is not None:
            run_dir = self.run_dir
            self._submit(partial(open_requests, run_dir), partial(self._take, run_dir))

    def pick(self, number: int) -> None:
        """Choose an image: the better one of two; of several first the best, then the worst."""
        request = self.request
        if request is None or number not in range(len(request.images)):
            return
        if len(request.images) == 2:
            self._submit_answer(Answer("chosen", number, 1 - number), f"Chose image {number + 1}.")
        elif self.best is None:
            self.best = number
            self.changed()
        elif number == self.best:
            self.undo()
        else:
            message = f"Chose image {self.best + 1} as the best, {number + 1} as the worst."
            self._submit_answer(Answer("chosen", self.best, number), message)

    def tie(self) -> None:
        """Answer that no image is better."""
        self._submit_answer(TIE, "A tie.")

    def skip(self) -> None:
        """Leave a request without a choice."""
        self._submit_answer(SKIP, "Skipped.")

    def undo(self) -> None:
        """Undo the mark, or else the last choice, unless the run has used it."""
        if self.best is not None:
            self.best = None
            self.changed()
        elif self._answered:
            request = self._answered.pop()
            self._submit(partial(take_back, request), partial(self._show_taken_back, request))

    def _submit_answer(self, choice: Answer, message: str) -> None:
        request = self.request
        if request is None:
            return
        del self._open[0]
        self._answered.append(request)
        self._unwritten.add(request.name)
        self.best, self.message = None, message
        self._submit(partial(_write_answer, request, choice), partial(self._show_written, request))
        self.changed()
        if not self._open:
            self.refresh()

    def _show_written(self, request: Request, problem: str) -> None:
        self._unwritten.discard(request.name)
        if problem:
            self.message = problem
            self._answered = [r for r in self._answered if r.name != request.name]
            self.changed()
            self.refresh()

    def _show_taken_back(self, request: Request, is_open: bool) -> None:
        if is_open:
            self._open.insert(0, request)
            self.best, self.message = None, "Choose again."
        else:
            self.message = IN_USE
        self.changed()

    def _take(self, run_dir: Path, read: list[Request]) -> None:
        """Use what was read; a request whose answer is not written yet stays answered."""
        if run_dir != self.run_dir:
            return
        requests = [request for request in read if request.name not in self._unwritten]
        if requests == self._open:
            return
        if not self._open:
            self._answered = []  # a new round
        if self.request != (requests[0] if requests else None):
            self.best = None
        self._open = requests
        self.changed()

    def _submit(self, work: _Work, done: _Done) -> None:
        self._pending_jobs.append((work, done))
        self._next()

    def _next(self) -> None:
        if self._is_busy or not self._pending_jobs:
            return
        self._is_busy = True
        work, done = self._pending_jobs.popleft()
        self._background.run(work, partial(self._finish_job, done), self._report_failure)

    def _finish_job(self, done: _Done, result: Any) -> None:
        self._is_busy = False
        try:
            done(result)
        finally:
            self._next()

    def _report_failure(self, error: Exception) -> None:
        _log.error("The choices could not be read", exc_info=error)
        self._is_busy = False
        self._next()


def _write_answer(request: Request, choice: Answer) -> str:
    """Write an answer; return what went wrong, or an empty text."""
    try:
        answer(request, choice)
    except FileNotFoundError:
        return WITHDRAWN
    except OSError as error:
        return f"The choice could not be written: {plain_reason(error)}."
    return ""
