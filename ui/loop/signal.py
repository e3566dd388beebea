"""Signals of the models. Each listener is isolated from the errors of the others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from typing import Any, Generic, ParamSpec
from weakref import WeakSet

P = ParamSpec("P")
Unsubscribe = Callable[[], None]

_keys = count(1)
_signals: WeakSet[Signal[Any]] = WeakSet()


def new_key() -> int:
    """Return a number above the keys of all listeners so far."""
    return next(_keys)


def forget_listeners_since(key: int) -> None:
    """Remove the listeners that subscribed to any signal after `new_key` returned this key."""
    for signal in list(_signals):
        signal.forget_since(key)


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
        _signals.add(self)

    def subscribe(self, listener: Callable[P, object]) -> Unsubscribe:
        """Add a listener; return the function that removes it."""
        key = new_key()
        self._listeners[key] = listener

        def unsubscribe() -> None:
            self._listeners.pop(key, None)

        return unsubscribe

    def forget_since(self, key: int) -> None:
        """Remove the listeners that subscribed after `new_key` returned this key."""
        for newer in [k for k in self._listeners if k > key]:
            del self._listeners[newer]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Notify all listeners, except those removed meanwhile."""
        for key, listener in list(self._listeners.items()):
            if key in self._listeners:
                notify(listener, *args, **kwargs)
