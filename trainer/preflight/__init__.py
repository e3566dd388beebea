"""What can be known before a run: everything that is wrong with it, at once, and what it will do. Torch-free.

The rules are imported by the first check: the window has these names before it is drawn, and nothing else of the room.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.schema import Config
from trainer.preflight.report import Preview, Report

if TYPE_CHECKING:
    from modules.data.datasets import Datasets

__all__ = ["Preview", "Report", "check"]


def check(
    config: Config,
    *,
    resume_from: Path | None = None,
    approved_code: Collection[str] | None = None,
    datasets: Datasets | None = None,
) -> Report:
    """Return everything that can be found without loading a model, by `trainer.preflight.checks.check`."""
    from trainer.preflight import checks

    return checks.check(config, resume_from=resume_from, approved_code=approved_code, datasets=datasets)
