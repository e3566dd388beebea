"""Listeners of models that must not know who listens, each isolated from the faults of the others. No Tk."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")
Unsubscribe = Callable[[], None]


def notify(listener: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call one listener. If it raises, report that like any other fault of the program, so that the others still run.

    The report goes through the interpreter's hook, which `Diagnostics` replaces by its own.
    """
    try:
        listener(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - the one place that isolates listeners; what they raise is reported
        sys.excepthook(type(error), error, error.__traceback__)


class Signal(Generic[P]):
    """Call it to tell all listeners, in the order in which they came."""

    def __init__(self) -> None:
        self._listeners: dict[int, Callable[P, object]] = {}
        self._next_key = 0

    def subscribe(self, listener: Callable[P, object]) -> Unsubscribe:
        """Add a listener; the function that is returned takes it away again."""
        key = self._next_key
        self._next_key += 1
        self._listeners[key] = listener

        def unsubscribe() -> None:
            self._listeners.pop(key, None)

        return unsubscribe

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Tell all listeners; one that is taken away meanwhile is not told any more."""
        for key, listener in list(self._listeners.items()):
            if key in self._listeners:
                notify(listener, *args, **kwargs)
