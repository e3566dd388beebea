"""What is trained, how fast, how long, and in which numbers."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.problem import Problem
from modules.config.schema import Config
from modules.families.registry import FAMILIES


def something_is_trained(config: Config) -> Iterator[Problem]:
    spec = FAMILIES[config.model.family]
    trained = [p for p in spec.trainable_parts if config.part(p.name).train]
    if not trained:
        yield Problem(
            f"parts.{spec.trainable_parts[0].name}.train",
            "No part of the model is trained.",
            advice=f"Switch training on for one of: {', '.join(p.label for p in spec.trainable_parts)}.",
        )
    for part in trained:
        settings = config.part(part.name)
        rate = config.training.learning_rate if settings.learning_rate is None else settings.learning_rate
        if rate == 0:
            yield Problem(
                f"parts.{part.name}.learning_rate",
                f"{part.label} is to be trained, but its learning rate is 0.",
                advice="Give it a rate, or switch its training off.",
            )


def plausible_learning_rate(config: Config) -> Iterator[Problem]:
    rate = config.training.learning_rate
    is_full = config.training.trains == "full"
    usual = "a fine-tune lie between 0.000001 and 0.00002" if is_full else "a LoRA lie between 0.00005 and 0.001"
    if rate > (0.001 if is_full else 0.05):
        yield Problem(
            "training.learning_rate",
            f"A learning rate of {rate:g} is far above what {config.training.optimizer.name} can use.",
            "warning",
            f"Usual values for {usual}.",
        )


def small_weights(config: Config) -> Iterator[Problem]:
    """Stochastic rounding goes to bfloat16, the upper half of float32; float16 is no half of anything."""
    if config.training.small_weights != "stochastic" or config.training.trains != "full":
        return
    for part in FAMILIES[config.model.family].trainable_parts:
        if config.part(part.name).train and config.part(part.name).dtype == "float16":
            yield Problem(
                "training.small_weights",
                f"{part.label} is kept in float16, to which nothing is rounded stochastically.",
                advice="Keep it in bfloat16, or let its weights learn through float32 copies.",
            )


def stops(config: Config) -> Iterator[Problem]:
    for name, part in config.parts.items():
        if part.train and part.stop_after.unit == "epoch" and part.stop_after.n >= config.training.epochs:
            yield Problem(
                f"parts.{name}.stop_after",
                f"It would stop after {part.stop_after.n:g} epochs, which the run of {config.training.epochs} "
                "does not outlast.",
                "info",
            )
