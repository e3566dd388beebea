"""Python's garbage collection during imports."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_off() -> Iterator[None]:
    """Switch garbage collection off for the time of an import, which makes many objects and hardly any garbage."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
