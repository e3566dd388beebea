"""The layers that the adapter is attached to."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.system.problem import Problem


def custom_layers(config: Config) -> Iterator[Problem]:
    """Yield an error if the layer filter is custom and has no layer names."""
    if config.training.trains != "adapter" or config.adapter.layers != "custom":
        return
    if not config.adapter.custom_layers.strip(" ,"):
        yield Problem(
            "adapter.custom_layers",
            "The layer filter is set to named layers, but no layer names are given.",
            advice="Enter parts of layer names, for example: attn1, attn2.",
        )
