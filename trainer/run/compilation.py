"""Whether a run compiles the blocks of its denoiser."""

from __future__ import annotations

from collections.abc import Callable

from modules.config.schema import Config
from modules.memory.compiled_blocks import Compilation


def compilation_of(config: Config, clock: Callable[[], float]) -> Compilation | None:
    """Return what compiles the blocks of a run's denoiser; None where they run as they are.

    With debug checks they do: the guard must see every operation, and torch compiles nothing that is observed like
    that. `modules/config/rules/weights.py` warns of it.
    """
    return Compilation(clock) if config.model.compile and not config.general.debug_checks else None
