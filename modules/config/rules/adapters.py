"""The adapter and the layers it sits on."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.system.problem import Problem


def custom_layers(config: Config) -> Iterator[Problem]:
    """Layers that are to be named: at least one is."""
    if config.training.trains != "adapter" or config.adapter.layers != "custom":
        return
    if not config.adapter.custom_layers.strip(" ,"):
        yield Problem(
            "adapter.custom_layers",
            "The layers are to be the named ones, but none is named.",
            advice="Name parts of layer names, as in: attn1, attn2.",
        )
