"""How often a run validates, if that is counted in steps."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.rules.images import too_few_validations
from modules.config.schema import Config
from modules.settings.every import Moment
from modules.system.problem import Problem


def problems_of_validation(config: Config, *, total_steps: int) -> Iterator[Problem]:
    """Yield problems of settings that depend on validation, if the run has too few validations for them."""
    every = config.validation.every
    if total_steps and every.unit == "step" and not every.is_never:
        yield from too_few_validations(config, every.times(Moment(step=total_steps, epoch=0, seconds=0.0)))
