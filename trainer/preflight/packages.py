"""Packages that are installed only where they are wanted: the settings that need one, and whether it is here."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from modules.config.schema import Config
from modules.config.sections.optimizer import NEEDS_BITSANDBYTES
from modules.system.problem import Problem


def problems_of_packages(config: Config) -> Iterator[Problem]:
    """Yield settings whose package is missing. Nothing is imported for it."""
    name = config.training.optimizer.name
    if name in NEEDS_BITSANDBYTES and importlib.util.find_spec("bitsandbytes") is None:
        yield Problem(
            "training.optimizer",
            f"The optimizer {name} needs the package bitsandbytes, which is not installed.",
            advice='Install what the extra "cuda" names (pip install ".[cuda]"), or choose another optimizer.',
        )
