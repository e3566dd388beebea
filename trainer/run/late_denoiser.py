"""Which text encoders leave the memory before the denoiser is read, so that both are never in it together.

A run whose text is cached needs them for its captions and for the prompts of its samples alone. They are encoded first;
whatever needs an encoder later, such as a changed prompt, has it read again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from torch import nn

from modules.adapters.start import Start
from modules.config.schema import Config
from modules.config.usage import embeddings_in_use, trained_parts, uses_denoiser
from trainer import phases


def has_encoders_to_drop(config: Config, may_stay: Mapping[str, frozenset[str]]) -> bool:
    """Return whether a run has large text encoders that leave the memory; `may_stay` are the parts that do not."""
    return bool(_encoders_to_drop(config, may_stay))


def readers_of_encoders(
    config: Config,
    start: Start | None,
    read: Callable[[str], nn.Module],
    may_stay: Mapping[str, frozenset[str]],
) -> dict[str, Callable[[], nn.Module]]:
    """Return functions that read each text encoder that leaves the memory again.

    One that keeps layers of the file that the run starts from stays: they are no part of the model's files.
    """
    names = _encoders_to_drop(config, may_stay)
    return {name: partial(read, name) for name in names if start is None or not start.kept_in(name)}


def _encoders_to_drop(config: Config, may_stay: Mapping[str, frozenset[str]]) -> list[str]:
    """Return the large text encoders that a run neither trains nor writes, and whose outputs it caches.

    A fine-tune writes all parts of its model. Where the device has room for an encoder, it stays there.
    """
    if config.training.trains == "full" or not uses_denoiser(config) or embeddings_in_use(config):
        return []
    if not phases.phase_facts(config).has_text_cache:
        return []
    staying, trained = may_stay.get(phases.TRAIN, frozenset()), {p.name for p in trained_parts(config)}
    large = [p.name for p in config.family.parts if p.role == "text_encoder" and p.model.is_large]
    return [name for name in large if name not in staying and name not in trained]
