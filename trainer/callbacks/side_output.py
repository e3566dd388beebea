"""Outputs that a run does not depend on, whose failed writes are warnings; and writes that a dry run discards."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from modules.system.file_errors import UnconfirmedError, describe_file_error
from trainer.events import Event, WarningRaised

logger = logging.getLogger("darkroom.run")


class SideOutput:
    """An output without which a run continues: samples, logs for other programs, intermediate saves.

    The first failure is a warning, and so is the first one after a success; other failures are only in the log.
    """

    def __init__(self, name: str, place: Path, emit: Callable[[Event], None]) -> None:
        """`name` begins the warning: "The samples". `place` is their file or folder, for errors that name none."""
        self._name = name
        self._place = place
        self._emit = emit
        self.is_failing = False

    @contextmanager
    def warn_on_failure(self) -> Iterator[None]:
        """Warn about a file that cannot be written within this context, which then ends early, and raise nothing."""
        try:
            yield
        except OSError as error:
            if error.filename is None:
                error.filename = str(self._place)
            logger.warning("%s could not be written.", self._name, exc_info=True)
            if not self.is_failing:
                reason, advice = describe_file_error(error)
                failed = "" if isinstance(error, UnconfirmedError) else f"{self._name} could not be written. "
                self._emit(WarningRaised(f"{failed}{reason}", f"Training continues. {advice}"))
            self.is_failing = True
        else:
            self.is_failing = False


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
