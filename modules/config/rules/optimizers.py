"""What an optimizer asks of its own fields."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.config.sections.optimizers.sgd import Sgd
from modules.system.problem import Problem


def nesterov(config: Config) -> Iterator[Problem]:
    """Nesterov momentum looks ahead along a momentum: there has to be one, and undampened."""
    settings = config.training.optimizer
    if isinstance(settings, Sgd) and settings.nesterov and (settings.momentum == 0 or settings.dampening != 0):
        yield Problem(
            "training.optimizer.nesterov",
            f"Nesterov momentum needs a momentum without dampening; momentum is {settings.momentum:g} and dampening "
            f"{settings.dampening:g}.",
            advice="Set the momentum to 0.9 and the dampening to 0, or switch Nesterov momentum off.",
        )
