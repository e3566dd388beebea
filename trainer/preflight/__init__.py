"""Checks before a run (preflight): all errors and warnings at once, and a preview of the run.

The rules are imported at the first check, because the window imports these names before it is drawn.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.schema import Config
from trainer.preflight.report import Preview, Progress, Report, no_progress

if TYPE_CHECKING:
    from modules.data.datasets import Datasets

__all__ = ["Preview", "Progress", "Report", "check"]


def check(
    config: Config,
    *,
    resume_from: Path | None = None,
    approved_code: Collection[str] | None = None,
    datasets: Datasets | None = None,
    run_dir: Path | None = None,
    is_fork: bool = False,
    replaces: bool = False,
    reads_images: bool = True,
    progress: Progress = no_progress,
) -> Report:
    """Return the report of `trainer.preflight.checks.check`: everything that can be found without loading a model."""
    from trainer.preflight import checks

    return checks.check(
        config,
        resume_from=resume_from,
        approved_code=approved_code,
        datasets=datasets,
        run_dir=run_dir,
        is_fork=is_fork,
        replaces=replaces,
        reads_images=reads_images,
        progress=progress,
    )
