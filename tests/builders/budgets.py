"""Budgets of runs whose memory is known."""

from __future__ import annotations

from pathlib import Path

from modules.config.schema import Config
from trainer.preflight.run_budget import Budget, Counts, known_budget


def budget_of_run(config: Config, sizes: Counts, start_copy: Path | None = None) -> Budget:
    """Return the budget of a run."""
    budget = known_budget(config, sizes, start_copy)
    assert budget is not None
    return budget
