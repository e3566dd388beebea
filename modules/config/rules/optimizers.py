"""What an optimizer asks of its own fields, and of the learning rates beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from modules.config.rules.rates import rates_in_use
from modules.config.schema import Config
from modules.optim.registry import optimizer_spec
from modules.system.problem import Problem


def optimizer_fields(config: Config) -> Iterator[Problem]:
    """What the optimizer's own record finds wrong among its fields."""
    settings = config.training.optimizer
    for problem in optimizer_spec(settings).problems(settings):
        yield replace(problem, path=f"training.optimizer.{problem.path}")


def one_learning_rate(config: Config) -> Iterator[Problem]:
    """An optimizer that finds one learning rate for all that is trained cannot follow different ones."""
    spec = optimizer_spec(config.training.optimizer)
    rates = rates_in_use(config)
    if spec.has_one_rate and len(set(rates.values())) > 1:
        path = next(reversed(rates))
        given = ", ".join(f"{rate:g}" for rate in rates.values())
        yield Problem(
            path,
            f"{spec.label} finds one learning rate for everything that is trained; the parts have different ones: "
            f"{given}.",
            advice="Give all parts the same learning rate, or choose another optimizer.",
        )
