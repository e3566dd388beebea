"""What can be known before a run: everything that is wrong with it, at once, and what it will do. Torch-free.

The rules are imported by the first check: the window has these names before it is drawn, and nothing else of the room.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from modules.config.schema import Config
from trainer.preflight.plans import datasets_of, plans_of
from trainer.preflight.report import Preview, Report

__all__ = ["Preview", "Report", "check", "datasets_of", "plans_of"]


def check(config: Config, *, resume_from: Path | None = None, approved_code: Collection[str] | None = None) -> Report:
    """Return everything that can be found without loading a model, by `trainer.preflight.checks.check`."""
    from trainer.preflight import checks

    return checks.check(config, resume_from=resume_from, approved_code=approved_code)
