"""A list of those who want to know, for models that must not know who they are. No Tk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")
Unsubscribe = Callable[[], None]


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
                listener(*args, **kwargs)
