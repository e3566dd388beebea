"""Beginning a write in a dry run and giving it up, so that nothing of it is left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


class DryRunComplete(Exception):  # noqa: N818 - no error: it ends a write of which one tensor is enough
    """Raised in the middle of an atomic write to give it up; what was there before stands."""


def enough(_done_bytes: int, _total_bytes: int) -> None:
    """End a write after its first tensor: for writers that take `on_written`."""
    raise DryRunComplete


@contextlib.contextmanager
def without_a_trace(folder: Path) -> Iterator[None]:
    """Let a write into a folder be given up by `DryRunComplete`; folders that were made for it are removed again."""
    made = [f for f in (folder, *folder.parents) if not f.exists()]
    try:
        yield
    except DryRunComplete:
        pass
    finally:
        for each in made:
            with contextlib.suppress(OSError):
                each.rmdir()
