"""What is trained, how long, and in which numbers."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.families.registry import FAMILIES
from modules.families.spec import PartSpec
from modules.system.problem import Problem


def something_is_trained(config: Config) -> Iterator[Problem]:
    """At least one part learns, and none at a rate of 0."""
    spec = FAMILIES[config.model.family]
    trained = _trained(config)
    if not trained:
        yield Problem(
            f"parts.{spec.trainable_parts[0].name}.train",
            "No part of the model is trained.",
            advice=f"Switch training on for one of: {', '.join(p.label for p in spec.trainable_parts)}.",
        )
    for part in trained:
        if config.part(part.name).learning_rate == 0:
            yield Problem(
                f"parts.{part.name}.learning_rate",
                f"{part.label} is to be trained, but its learning rate is 0.",
                advice="Give it a rate, or switch its training off.",
            )
    if config.training.learning_rate == 0 and any(config.part(p.name).learning_rate is None for p in trained):
        yield Problem(
            "training.learning_rate",
            "The learning rate is 0: nothing is learned.",
            advice="Give a rate, or a part of the model its own.",
        )


def low_precision_updates(config: Config) -> Iterator[Problem]:
    """Trained weights in float16: nothing is rounded to them at random, and small gradients vanish in them."""
    if config.training.trains != "full":
        return
    for part in _trained(config):
        if config.part(part.name).dtype != "float16":
            continue
        if config.training.low_precision_updates == "stochastic":  # that goes to bfloat16, the upper half of float32
            yield Problem(
                "training.low_precision_updates",
                f"{part.label} is kept in float16, to which nothing is rounded stochastically.",
                advice="Keep it in bfloat16, or let its weights learn through float32 copies.",
            )
        elif config.training.precision != "float16":
            yield Problem(
                f"parts.{part.name}.dtype",
                f"{part.label} is trained in float16 with the precision {config.training.precision}, which does not "
                "scale the loss: small gradients vanish.",
                "warning",
                "Keep it in bfloat16 or float32, or choose the precision float16, which scales the loss.",
            )


def stops(config: Config) -> Iterator[Problem]:
    """Parts that stop at once, after the end, or all before it. Spans counted in steps need the images."""
    epochs = config.training.epochs
    trained = _trained(config)
    for part in trained:
        after = config.part(part.name).stop_after
        if after.unit != "never" and after.n <= 0:
            yield Problem(
                f"parts.{part.name}.stop_after",
                f"{part.label} is to stop after {after.n:g} {after.unit}s, before it starts; that counts as never, and "
                "it learns to the end.",
                "warning",
                "Switch the training of this part off, or say after how much of the run it stops.",
            )
        elif after.unit == "epoch" and after.n >= epochs:
            yield Problem(
                f"parts.{part.name}.stop_after",
                f"It would stop after {after.n:g} epochs, which the run of {epochs} does not outlast.",
                "info",
            )
    spans = {p.name: config.part(p.name).stop_after for p in trained}
    if spans and all(s.unit == "epoch" and 0 < s.n < epochs for s in spans.values()):
        last = max(spans, key=lambda name: spans[name].n)
        yield Problem(
            f"parts.{last}.stop_after",
            f"All that is trained stops after {spans[last].n:g} epochs: the run of {epochs} ends there.",
            "warning",
            "Let one part learn to the end, or shorten the run.",
        )


def _trained(config: Config) -> list[PartSpec]:
    return [p for p in FAMILIES[config.model.family].trainable_parts if config.part(p.name).train]
