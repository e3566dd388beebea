"""What compiling the model cannot do."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.system.problem import Problem


def compiling(config: Config) -> Iterator[Problem]:
    """Yield a warning for debug checks, which see every operation: compiled blocks have none of their own."""
    if config.model.compile and config.general.debug_checks:
        yield Problem(
            "model.compile",
            "With debug checks the model is not compiled: they check every operation, and compiled blocks hide theirs.",
            "warning",
            "Switch off the debug checks, or Compile the model.",
        )
