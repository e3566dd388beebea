"""What can be known before a run: everything that is wrong with it, at once, and what it will do. Torch-free."""

from __future__ import annotations

from trainer.preflight.checks import check
from trainer.preflight.plans import datasets_of, plans_of
from trainer.preflight.report import Preview, Report

__all__ = ["Preview", "Report", "check", "datasets_of", "plans_of"]
