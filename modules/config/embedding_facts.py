"""Facts about the embeddings of a config, and about which parts it trains."""

from __future__ import annotations

from collections.abc import Mapping

from modules.config.schema import Config
from modules.config.sections.embeddings import EmbeddingWord
from modules.families.spec import PartSpec


def trained_parts(config: Config) -> list[PartSpec]:
    """Return the parts whose weights, or adapters, a run trains: none in a run that trains embeddings alone."""
    if config.training.trains == "embedding":
        return []
    return [p for p in config.family_parts if p.trainable and config.part(p.name).train]


def words_in_use(config: Config) -> tuple[EmbeddingWord, ...]:
    """Return the embeddings of a run, trained or only used; a run that trains the VAE reads no text."""
    if config.training.trains == "vae" or not config.family.text.embedding_tensors:
        return ()
    return config.embeddings.words


def trained_encoders(config: Config) -> tuple[str, ...]:
    """Return the text encoders for which embeddings are trained."""
    return tuple(n for n in config.family.text.embedding_tensors if config.part(n).train_embedding)


def trained_words(config: Config) -> tuple[EmbeddingWord, ...]:
    """Return the embeddings that a run trains."""
    return tuple(w for w in words_in_use(config) if w.train) if trained_encoders(config) else ()


def word_rates(config: Config) -> Mapping[str, float]:
    """Return the learning rate of each trained embedding by its placeholder, without the learning rate scaler."""
    general = config.embeddings.learning_rate
    fallback = config.training.learning_rate if general is None else general
    return {w.placeholder: fallback if w.learning_rate is None else w.learning_rate for w in trained_words(config)}


def key_of_word(word: EmbeddingWord) -> str:
    """Return the key of an embedding in backups: its UUID, so that the placeholder may change, or the placeholder."""
    return word.uuid.strip() or word.placeholder
