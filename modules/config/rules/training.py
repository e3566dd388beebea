"""The training target, the length of the run, and low-precision weight updates."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.embedding_facts import trained_parts, trained_words
from modules.config.schema import Config
from modules.system.problem import Problem


def something_is_trained(config: Config) -> Iterator[Problem]:
    """Yield problems if no part is trained, or a trained part has a learning rate of 0."""
    trainable = [p for p in config.family_parts if p.trainable]
    trained = trained_parts(config)
    if trainable and not trained and not trained_words(config) and config.training.trains != "embedding":
        yield Problem(
            f"parts.{trainable[0].name}.train",
            "No part of the model is trained.",
            advice=f"Switch training on for one of: {', '.join(p.label for p in trainable)}.",
        )
    for part in trained:
        if config.part(part.name).learning_rate == 0:
            yield Problem(
                f"parts.{part.name}.learning_rate",
                f"{part.label} is set to be trained, but its learning rate is 0.",
                advice="Set its learning rate, or switch its training off.",
            )
    if config.training.learning_rate == 0 and any(config.part(p.name).learning_rate is None for p in trained):
        yield Problem(
            "training.learning_rate",
            "The learning rate is 0: nothing is trained.",
            advice="Set the learning rate, or give each part its own.",
        )


def low_precision_updates(config: Config) -> Iterator[Problem]:
    """Yield problems with trained float16 weights: no stochastic rounding, and small gradients vanish."""
    if config.training.trains not in ("full", "vae"):
        return
    for part in trained_parts(config):
        if config.part(part.name).dtype != "float16":
            continue
        if config.training.low_precision_updates == "stochastic":  # to bfloat16 only, the upper half of float32
            yield Problem(
                "training.low_precision_updates",
                f"The weights of {part.label} are float16, which stochastic rounding does not support.",
                advice="Set the weight dtype to bfloat16, or the low-precision weight updates to master weights.",
            )
        elif config.training.precision != "float16":
            yield Problem(
                f"parts.{part.name}.dtype",
                f"{part.label} is trained with float16 weights and the precision {config.training.precision}, which "
                "does not scale the loss: small gradients vanish.",
                "warning",
                "Set the weight dtype to bfloat16 or float32, or choose the precision float16, which scales the loss.",
            )


def stops(config: Config) -> Iterator[Problem]:
    """Yield problems with parts that stop at once, never, or all before the end. Steps are checked with the images."""
    epochs = config.training.epochs
    trained = trained_parts(config)
    for part in trained:
        after = config.part(part.name).stop_after
        if after.unit != "never" and after.n <= 0:
            yield Problem(
                f"parts.{part.name}.stop_after",
                f"{part.label} is set to stop training after {after.n:g} {after.unit}s, before it starts; that counts "
                "as never, and it is trained to the end.",
                "warning",
                "Switch off the training of this part, or set when it stops.",
            )
        elif after.unit == "epoch" and after.n >= epochs:
            yield Problem(
                f"parts.{part.name}.stop_after",
                f"{part.label} would stop training after {after.n:g} epochs, but the run has only {epochs}.",
                "info",
            )
    spans = {p.name: config.part(p.name).stop_after for p in trained}
    if spans and not trained_words(config) and all(s.unit == "epoch" and 0 < s.n < epochs for s in spans.values()):
        last = max(spans, key=lambda name: spans[name].n)
        yield Problem(
            f"parts.{last}.stop_after",
            f"Training of every part stops after {spans[last].n:g} epochs: the run of {epochs} epochs ends there.",
            "warning",
            "Train one part to the end, or shorten the run.",
        )
