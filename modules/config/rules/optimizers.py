"""What an optimizer requires of its own settings and of the learning rates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from modules.config.method_facts import rate_factor_of
from modules.config.rules.rates import rates_in_use
from modules.config.schema import Config
from modules.config.words import word_rates
from modules.optim.registry import optimizer_spec
from modules.system.problem import Problem


def optimizer_fields(config: Config) -> Iterator[Problem]:
    """Yield the problems that the optimizer's own record finds in its settings."""
    settings = config.training.optimizer
    for problem in optimizer_spec(settings).problems(settings):
        yield replace(problem, path=f"training.optimizer.{problem.path}")


def _rates_of_words(config: Config) -> dict[str, float]:
    places = {w.placeholder: f"embeddings.words.{i}.learning_rate" for i, w in enumerate(config.embeddings.words)}
    factor = rate_factor_of(config)
    return {places[placeholder]: rate * factor for placeholder, rate in word_rates(config).items()}


def one_learning_rate(config: Config) -> Iterator[Problem]:
    """Yield an error if an optimizer that estimates a single learning rate is given different ones."""
    spec = optimizer_spec(config.training.optimizer)
    rates = rates_in_use(config) | _rates_of_words(config)
    if spec.has_one_rate and len(set(rates.values())) > 1:
        path = next(reversed(rates))
        given = ", ".join(f"{rate:g}" for rate in rates.values())
        yield Problem(
            path,
            f"{spec.label} estimates a single learning rate for everything that is trained, but the parts have "
            f"different ones: {given}.",
            advice="Give all parts the same learning rate, or choose another optimizer.",
        )
    ratio = getattr(config.adapter, "lora_plus_ratio", 1.0)
    if spec.has_one_rate and config.training.trains == "adapter" and ratio != 1.0:
        yield Problem(
            "adapter.lora_plus_ratio",
            f"{spec.label} estimates a single learning rate for everything that is trained; a LoRA+ ratio of {ratio:g} "
            "gives the up matrices another one.",
            advice="Set the ratio to 1, or choose another optimizer.",
        )


def weights_that_stay_zero(config: Config) -> Iterator[Problem]:
    """Yield an error if an optimizer that leaves zeros would train an adapter, half of which is zero at first."""
    settings = config.training.optimizer
    spec = optimizer_spec(settings)
    if config.training.trains == "adapter" and spec.leaves_zeros(settings):
        yield Problem(
            "training.optimizer",
            f"{spec.label} limits each update by the norm of the weights. A new adapter has weights that are all zero: "
            "they would never change.",
            advice="Set Max update to 0 where the optimizer has it, or choose another optimizer.",
        )
