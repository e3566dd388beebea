"""Starting a write in a dry run and discarding it, so that no file is left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


class DryRunComplete(Exception):  # noqa: N818 - not an error: it ends a write after its first tensor
    """Raised during an atomic write to discard it; an existing file stays."""


def end_write(_done_bytes: int, _total_bytes: int) -> None:
    """End a write after its first tensor: for writers that take `on_written`."""
    raise DryRunComplete


@contextlib.contextmanager
def discarded_write(folder: Path) -> Iterator[None]:
    """Discard a write into a folder on `DryRunComplete`; folders created for it are removed again."""
    created = [f for f in (folder, *folder.parents) if not f.exists()]
    try:
        yield
    except DryRunComplete:
        pass
    finally:
        for each in created:
            with contextlib.suppress(OSError):
                each.rmdir()
