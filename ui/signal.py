"""Signals of the models. Each listener is isolated from the errors of the others. No Tk."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")
Unsubscribe = Callable[[], None]


def notify(listener: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call one listener. If it raises, report an internal error, so that the others still run.

    The report goes through `sys.excepthook`, which `Diagnostics` replaces.
    """
    try:
        listener(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - the one place that isolates listeners; errors are reported
        sys.excepthook(type(error), error, error.__traceback__)


class Signal(Generic[P]):
    """Call it to notify all listeners, in the order of subscription."""

    def __init__(self) -> None:
        self._listeners: dict[int, Callable[P, object]] = {}
        self._next_key = 0

    def subscribe(self, listener: Callable[P, object]) -> Unsubscribe:
        """Add a listener; return the function that removes it."""
        key = self._next_key
        self._next_key += 1
        self._listeners[key] = listener

        def unsubscribe() -> None:
            self._listeners.pop(key, None)

        return unsubscribe

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Notify all listeners, except those removed meanwhile."""
        for key, listener in list(self._listeners.items()):
            if key in self._listeners:
                notify(listener, *args, **kwargs)
