"""A status line on the terminal with the elapsed time; plain lines if the output is not a terminal."""

import os
import sys
import time
from typing import TextIO

_PLAIN_INTERVAL_SECONDS = 10.0


class Progress:
    """Shows the latest status of one job; `show` may be called as often as needed."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._started = time.monotonic()
        self._plain_shown = -_PLAIN_INTERVAL_SECONDS
        self._is_terminal = self._stream.isatty()
        self._open_line = ""

    def elapsed(self) -> str:
        """Minutes and seconds since the start, as in 3:07."""
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        return f"{minutes}:{seconds:02}"

    def show(self, text: str, share: float = 0.0) -> None:
        """Replace the line on a terminal; otherwise print a line, at most every ten seconds.

        `share` of the job is done, which the window shows as a bar.
        """
        if self._is_terminal:
            line = _fit_terminal(f"{text} · {self.elapsed()}")
            if line != self._open_line:
                self._stream.write(f"\r\033[K{line}")
                self._stream.flush()
                self._open_line = line
        elif time.monotonic() - self._plain_shown >= _PLAIN_INTERVAL_SECONDS:
            self._plain_shown = time.monotonic()
            self.print_line(f"{text} · {self.elapsed()}")

    def print_line(self, text: str) -> None:
        """Print a permanent line."""
        self.close()
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Clear the status line."""
        if self._open_line:
            self._stream.write("\r\033[K")
            self._stream.flush()
            self._open_line = ""


def _fit_terminal(text: str) -> str:
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        columns = 80
    return text if columns <= 1 or len(text) < columns else text[: columns - 2] + "…"
