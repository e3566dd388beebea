"""Hundreds of small items in one test: pytest spends milliseconds on each that it counts by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
_MAX_SHOWN = 5


def for_each(
    items: Iterable[T], *, named: Callable[[T], str] = str
) -> Callable[[Callable[[T], None]], Callable[[], None]]:
    """Make one test of a function of an item; it tries all of them and shows the first few that fail, by name."""
    listed = list(items)

    def decorate(check: Callable[[T], None]) -> Callable[[], None]:
        def test() -> None:
            assert listed, "there is nothing to try"
            failed = []
            for item in listed:
                try:
                    check(item)
                except Exception as error:  # noqa: BLE001 - raised below, with its fellows
                    error.add_note(f"for {named(item)}")
                    failed.append(error)
            if failed:
                raise ExceptionGroup(f"{len(failed)} of {len(listed)} fail", failed[:_MAX_SHOWN])

        # Without functools.wraps, through which pytest would take the item for a fixture.
        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        return test

    return decorate
