"""The signals to end the program: Ctrl-C, the system's request, and a terminal that was closed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

_HANGUP = getattr(signal, "SIGHUP", None)  # Windows has none

Handlers = dict[signal.Signals, Any]


def on_signal(stop: Callable[[], object], *, again: Callable[[], object] | None = None) -> Handlers:
    """Call `stop` at the first signal to end, and return the handlers that were there before.

    When it comes once more `again` is called; without it the program ends at once. Other signals to end do not count as
    the second, and a closed terminal never does: several of them may report the same. A program that was started to
    outlive its terminal (nohup) ignores that.
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    if _HANGUP is not None and signal.getsignal(_HANGUP) != signal.SIG_IGN:
        numbers.append(_HANGUP)
    before: Handlers = {}
    stops = [stop]

    def first(number: int, _frame: FrameType | None) -> None:
        second: Any = signal.SIG_DFL if again is None else (lambda _number, _frame: again())
        signal.signal(number, signal.SIG_IGN if number == _HANGUP else second)
        if stops:
            stops.pop()()

    for number in numbers:
        before[number] = signal.signal(number, first)
    return before


def restore(before: Handlers) -> None:
    """Set the handlers that were there before."""
    for number, handler in before.items():
        signal.signal(number, handler)
