"""Embeddings: their placeholders, and what they do not go together with."""

from __future__ import annotations

import re
from collections.abc import Iterator

from modules.config.schema import Config
from modules.config.usage import (
    embedding_rates,
    method_of,
    supports_embeddings,
    trained_embeddings,
    trained_encoders,
    uses_prior,
)
from modules.objectives.registry import METHODS
from modules.optim.registry import optimizer_spec
from modules.system.problem import Problem, quote

_NOT_IN_PLACEHOLDERS = re.compile(r"[\s()\[\]{}|,.\\/:]")


def embeddings(config: Config) -> Iterator[Problem]:
    """Yield problems with the embeddings of a config, and an error if a run of embeddings trains none."""
    words, family = config.embeddings.words, config.family
    trains_embeddings = config.training.trains == "embedding"
    if not supports_embeddings(config) and (words or trains_embeddings):
        advice = "Choose another training target" if trains_embeddings else "Remove the embeddings"
        yield Problem(
            "training.trains" if trains_embeddings else "embeddings.words",
            f"{family.label} does not support embeddings.",
            advice=f"{advice}, or another model family.",
        )
        return
    for index, word in enumerate(words):
        match = _NOT_IN_PLACEHOLDERS.search(word.placeholder)
        if match and word.placeholder.strip():  # an empty one is reported with the captions
            what = "a space" if match[0].isspace() else quote(match[0])
            yield Problem(
                f"embeddings.words.{index}.placeholder",
                f"The placeholder {quote(word.placeholder)} contains {what}: it must be a single word, which captions "
                "and other programs can tell apart from other words.",
                advice="Use letters, digits and - _ < >, as in <my-word>.",
            )
        most = family.text.chunk_tokens
        if word.token_count is not None and word.token_count > most:
            yield Problem(
                f"embeddings.words.{index}.token_count",
                f"The embedding has {word.token_count} vectors, and {family.label} reads {most} tokens at once.",
                advice=f"Use at most {most}.",
            )
    if trains_embeddings:
        yield from _untrained_embeddings(config)
    yield from _combinations(config)


def _untrained_embeddings(config: Config) -> Iterator[Problem]:
    if not trained_encoders(config):
        labels = config.family.part_labels
        names = list(config.family.text.embedding_tensors)
        yield Problem(
            f"parts.{names[0]}.train_embedding",
            "No text encoder has its embeddings trained.",
            advice=f"Switch on Train embeddings for one of: {', '.join(labels[n] for n in names)}.",
        )
    elif not trained_embeddings(config):
        yield Problem(
            "embeddings.words",
            "The training target is embeddings, but no embedding is trained.",
            advice="Add an embedding, or choose another training target.",
        )
    elif uses_prior(config):
        yield Problem(
            "training.trains",
            "Masked prior preservation and prior prediction concepts compare the trained model with the model before "
            "training, but a run of embeddings does not change the model.",
            advice="Switch off masked prior preservation and the prior prediction concepts, or train a LoRA as well.",
        )


def _combinations(config: Config) -> Iterator[Problem]:
    """Yield problems of trained embeddings with the method, the optimizer and the learning rates."""
    if not trained_embeddings(config):
        return
    if not method_of(config).trains_embeddings:
        labels = " or ".join(spec.label for spec in METHODS.values() if spec.trains_embeddings)
        yield Problem(
            "training.method",
            f"{method_of(config).label} does not train embeddings.",
            advice=f"Choose {labels}, or switch off the training of the embeddings.",
        )
    for placeholder, rate in embedding_rates(config).items():
        if rate == 0:
            index = next(i for i, w in enumerate(config.embeddings.words) if w.placeholder == placeholder)
            yield Problem(
                f"embeddings.words.{index}.learning_rate",
                f"The embedding {placeholder} is set to be trained, but its learning rate is 0.",
                advice="Set its learning rate, or switch its training off.",
            )
    if config.embeddings.preserve_norm:
        yield from _norms(config)


def _norms(config: Config) -> Iterator[Problem]:
    spec = optimizer_spec(config.training.optimizer)
    if spec.has_evaluation_mode(config.training.optimizer):
        yield Problem(
            "embeddings.preserve_norm",
            f"{spec.label} derives the weights from averages of its own, whose norm would not be preserved.",
            advice="Switch it off, or choose another optimizer.",
        )
    if config.embeddings.dtype != "float32" and config.training.low_precision_updates == "stochastic":
        yield Problem(
            "embeddings.preserve_norm",
            f"The embeddings are {config.embeddings.dtype} and are rounded stochastically: scaling them by a little "
            "would be lost in rounding.",
            advice="Set the low-precision weight updates to master weights, or the embedding dtype to float32.",
        )
