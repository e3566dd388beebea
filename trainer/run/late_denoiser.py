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
from trainer import phases


def has_encoders_to_drop(config: Config, may_stay: Mapping[str, frozenset[str]]) -> bool:
    """Return whether a run has large text encoders that leave the memory; `may_stay` are the parts that do not."""
    return bool(phases.encoders_to_drop(config, may_stay))


def readers_of_encoders(
    config: Config,
    start: Start | None,
    read: Callable[[str], nn.Module],
    may_stay: Mapping[str, frozenset[str]],
) -> dict[str, Callable[[], nn.Module]]:
    """Return functions that read each text encoder that leaves the memory again.

    One that keeps layers of the file that the run starts from stays: they are no part of the model's files.
    """
    names = phases.encoders_to_drop(config, may_stay)
    return {name: partial(read, name) for name in names if start is None or not start.kept_in(name)}
