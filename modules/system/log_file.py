"""The program's log as a file that may fail: a full disk or a read-only one costs lines of the log and nothing else."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

from modules.system.redaction import RedactingFormatter

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LogFile(logging.FileHandler):
    """Appends the log to a file, without secrets. The file is opened with the first line; no failure is printed."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, encoding="utf-8", errors="backslashreplace", delay=True)
        self.setFormatter(RedactingFormatter(_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or nothing where that fails: logging prints a traceback for each line otherwise."""
        with suppress(OSError):  # of opening the file
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Leave out the line if the file cannot be written; show mistakes in the call, as logging does."""
        try:
            raise
        except OSError:
            return
        except Exception:  # noqa: BLE001 - logging's own way of showing it
            super().handleError(record)

    def close(self) -> None:
        """Close the file; what is still unwritten is lost if that fails."""
        with suppress(OSError):
            super().close()
