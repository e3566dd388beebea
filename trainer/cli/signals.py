"""The signals to end the program: Ctrl-C, Ctrl-Break, the system's request, and a terminal that was closed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_HANGUP = getattr(signal, "SIGHUP", None)  # Windows has none
_BREAK = getattr(signal, "SIGBREAK", None)  # Windows alone has it: Ctrl-Break, also to a process without a Ctrl-C


@contextmanager
def at_signal(stop: Callable[[], object], *, again: Callable[[], object] | None = None) -> Iterator[None]:
    """Call `stop` at the first signal to end in the context, and restore the handlers after it.

    When it comes once more `again` is called; without it the program ends at once. Other signals to end do not count as
    the second, and a closed terminal never does: several of them may report the same. A program that was started to
    outlive its terminal (nohup) ignores that. Only the main thread gets signals: in another one nothing is done.
    """
    numbers = [signal.SIGINT, signal.SIGTERM] if threading.current_thread() is threading.main_thread() else []
    if numbers and _BREAK is not None:
        numbers.append(_BREAK)
    if numbers and _HANGUP is not None and signal.getsignal(_HANGUP) != signal.SIG_IGN:
        numbers.append(_HANGUP)
    stops = [stop]

    def first(number: int, _frame: FrameType | None) -> None:
        second: Any = signal.SIG_DFL if again is None else (lambda _number, _frame: again())
        signal.signal(number, signal.SIG_IGN if number == _HANGUP else second)
        if stops:
            stops.pop()()

    before = {number: signal.signal(number, first) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
