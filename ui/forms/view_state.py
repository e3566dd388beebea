"""What the user entered or chose in the views that is no setting: kept where they are built anew. No Tk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class ViewState:
    """Values by the names of the views that they belong to; they last as long as the window."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def of(self, name: str, make: Callable[[], T]) -> T:
        """Return the state of a view; it is made when it is first needed."""
        if name not in self._values:
            self._values[name] = make()
        value: T = self._values[name]
        return value
