"""A child process that a test speaks for: what the window sends, and lines of events in return."""

from __future__ import annotations

import io
import queue
from collections.abc import Iterator, Sequence
from typing import IO

from trainer.event_lines import to_line
from trainer.job_events import JobEvent


class _Input(io.StringIO):
    """The child's standard input: the lines sent, and whether it was closed."""

    def __init__(self, child: FakeChild) -> None:
        super().__init__()
        self._child = child

    def write(self, text: str) -> int:
        self._child.sent += text.splitlines()
        return len(text)

    def close(self) -> None:
        self._child.is_closed = True
        self._child.lines.put(None)


class FakeChild:
    """Call `report` with events and `end` with an exit code."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.arguments = list(arguments)
        self.sent: list[str] = []
        self.is_closed = False
        self.code = 0
        self.lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.stdin = _Input(self)
        self.stdout = self._lines()

    def report(self, *events: JobEvent) -> None:
        for event in events:
            self.lines.put(to_line(event) + "\n")

    def end(self, code: int = 0) -> None:
        self.code = code
        self.lines.put(None)

    def wait(self, timeout: float | None = None) -> int:
        return self.code

    def _lines(self) -> Iterator[str]:
        while (line := self.lines.get()) is not None:
            yield line


class Spawner:
    """Starts fake children and keeps them."""

    def __init__(self) -> None:
        self.children: list[FakeChild] = []

    def __call__(self, arguments: Sequence[str], _errors: IO[bytes]) -> FakeChild:
        self.children.append(FakeChild(arguments))
        return self.children[-1]

    @property
    def last(self) -> FakeChild:
        return self.children[-1]
