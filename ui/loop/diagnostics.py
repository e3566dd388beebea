"""Internal errors: a log file per launch, the last lines in memory, and one plain dialog.

Errors come from Tk callbacks, threads and the interpreter itself; `faulthandler` logs crashes in native code.
"""

from __future__ import annotations

import faulthandler
import logging
import platform
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO

from modules.system.redaction import LogFile, RedactingFormatter, redact
from ui.loop.interaction import Failure

_log = logging.getLogger(__name__)
_MAX_LINES = 200
_MAX_LOGS = 10
_PACKAGES = ("customtkinter", "pydantic", "pillow", "torch", "diffusers")
_MAX_REPEATS, _REPEATS_SECONDS = 5, 10.0
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class RingHandler(logging.Handler):
    """Keeps the last lines of the log in memory, for reports."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=_MAX_LINES)
        self.setFormatter(RedactingFormatter(_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        """Store a record as text."""
        self.lines.append(self.format(record))


class Diagnostics:
    """The log of this launch, and the handling of internal errors."""

    def __init__(self, folder: Path) -> None:
        self.ring = RingHandler()
        self.log_file: Path | None = None
        self.show: Callable[[Failure], object] | None = None
        # A dialog waits for its answer, so the interrupted work is finished first.
        self.defer: Callable[[Callable[[], None]], object] = lambda show: show()
        self._crash_file: IO[str] | None = None
        self._is_dialog_open = False
        self._error_times: dict[tuple[str, ...], deque[float]] = {}  # by error and line, in seconds
        self._handlers: list[logging.Handler] = [self.ring]
        self._open_files(folder)

    def install(self) -> None:
        """Install the log and the hooks for errors outside of Tk."""
        root = logging.getLogger()
        root.setLevel(logging.INFO)
        for handler in self._handlers:
            root.addHandler(handler)
        sys.excepthook = self.on_exception
        threading.excepthook = self._on_thread_exception
        # At once, so that a launch that dies early leaves a log too.
        _log.info("Started on Python %s, %s", platform.python_version(), sys.platform)

    def log_system_facts(self) -> None:
        """Write the versions of this machine to the log. For a background thread: it reads the packages' metadata."""
        for line in system_facts():
            _log.info("%s", line)

    def close(self) -> None:
        """Undo `install`; from now on no dialog is shown."""
        self.show = None
        for handler in self._handlers:
            logging.getLogger().removeHandler(handler)
            handler.close()
        sys.excepthook = sys.__excepthook__
        threading.excepthook = threading.__excepthook__
        if self._crash_file is not None:
            faulthandler.disable()
            self._crash_file.close()

    def on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Log an internal error and show it; the signature is the one of Tk's and the interpreter's hooks."""
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, trace)
            return
        if self._is_repeated(error, trace):
            return
        _log.error("Internal error", exc_info=(kind, error, trace))
        if self.show is None or self._is_dialog_open:
            return
        self._is_dialog_open = True
        failure = self._failure("".join(traceback.format_exception(kind, error, trace)))
        self.defer(partial(self._show_now, failure))

    def report(self, details: str) -> str:
        """Return a text for a bug report: the error, the machine, the last lines of the log."""
        facts = ("", *system_facts(), "", "The last lines of the log:")
        return redact("\n".join([details.rstrip(), *facts, *self.ring.lines]))

    def _is_repeated(self, error: BaseException, trace: TracebackType | None) -> bool:
        """Return whether the same error was just seen many times: in a loop it would fill the log and ask forever."""
        frames = traceback.extract_tb(trace)
        place = (repr(error), *(f"{f.filename}:{f.lineno}" for f in frames[-1:]))
        now = time.monotonic()
        times = self._error_times.setdefault(place, deque(maxlen=_MAX_REPEATS))
        is_repeated = len(times) == _MAX_REPEATS and now - times[0] < _REPEATS_SECONDS
        times.append(now)
        return is_repeated

    def _show_now(self, failure: Failure) -> None:
        try:
            if self.show is not None:
                self.show(failure)
        finally:
            self._is_dialog_open = False

    def _failure(self, details: str) -> Failure:
        return Failure(
            title="Something went wrong inside Darkroom",
            message="This is a bug in Darkroom, not in your settings.",
            advice="Your last action may not have been completed. Please report the details.",
            details=self.report(details),
            details_file=self.log_file,
        )

    def _on_thread_exception(self, args: threading.ExceptHookArgs) -> None:
        # No dialog: this is not the Tk thread. A run's thread reports its end by an event.
        if args.exc_value is not None:
            trace = (args.exc_type, args.exc_value, args.exc_traceback)
            _log.error("Error in thread %s", args.thread.name if args.thread else "?", exc_info=trace)

    def _open_files(self, folder: Path) -> None:
        """Open this launch's log and crash file; without a writable folder the log stays in memory."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _remove_old(folder)
            self.log_file = folder / f"darkroom-{datetime.now():%Y-%m-%d_%H-%M-%S_%f}.log"
            handler = LogFile(self.log_file)
            self._crash_file = (folder / "crash.log").open("a", encoding="utf-8")
        except OSError:
            self.log_file = None
            return
        self._handlers.append(handler)
        faulthandler.enable(self._crash_file)


def system_facts() -> Iterable[str]:
    """Return the machine's versions and platform for a report, without importing large packages."""
    from importlib.metadata import PackageNotFoundError, version  # needed once the window is drawn, or for a report

    yield f"Python {platform.python_version()} on {platform.platform()}"
    for package in _PACKAGES:
        try:
            yield f"{package} {version(package)}"
        except PackageNotFoundError:
            yield f"{package} is not installed as a package"


def _remove_old(folder: Path) -> None:
    for file in sorted(folder.glob("darkroom-*.log"))[: -_MAX_LOGS + 1]:
        file.unlink(missing_ok=True)
