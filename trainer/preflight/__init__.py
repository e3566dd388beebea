"""Checks before a run (preflight): all errors and warnings at once, and a preview of the run.

`check` is imported on first use, because the window only needs the records before it is drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.preflight.report import Preview, Progress, Report

__all__ = ["Preview", "Progress", "Report", "check"]

if TYPE_CHECKING:
    from trainer.preflight.checks import check
else:

    def __getattr__(name: str) -> object:
        """Return `check`."""
        if name == "check":
            from trainer.preflight.checks import check

            return check
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
